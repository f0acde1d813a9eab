"""Errors that a user can act on."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; one sentence with the place and the mend."""


class DataError(ValueError):
    """Data that cannot be used; the message is one sentence with the place and the mend."""


class Diverged(RuntimeError):
    """The loss is no longer a number; the last good checkpoint is on disk."""


class MemoryShort(RuntimeError):
    """A GPU's memory is too small for an evaluation; nothing that was trained is lost."""


class CaptureError(RuntimeError):
    """Work that cannot be recorded as a CUDA graph."""


class SettingsError(ValueError):
    """Settings that cannot be used; one sentence with the key and the mend."""


class ReportError(ValueError):
    """What cannot be reported; the message is one sentence with the place and the mend."""


class RunFolderError(RuntimeError):
    """A run folder that cannot be used; one sentence with the place and the mend."""


class NothingTrained(RuntimeError):
    """A limit ends the run before there are weights to test."""
