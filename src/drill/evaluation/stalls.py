"""NaN of a kernel that found no room on the GPU: neither the weights nor the text are at fault."""

from drill.kernels.lstm_persistent import STALLED, take_stall


class Stalled(RuntimeError):
    """A kernel waited in vain. No result may be made of it: the next try can go well."""


def refuse_stall(name: str) -> None:
    """Stalled if a launch has given up since this was last asked, which is then forgotten.

    Whoever finds NaN asks here first, before it blames anything else.
    """
    if take_stall():
        raise Stalled(f"{name}: {STALLED}; run it again on a free GPU")
