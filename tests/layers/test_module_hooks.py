"""Which modules have to be called: those of which more than the weights counts."""

import pytest
from torch import nn
from torch.nn.modules import module as torch_module

from drill.layers.checks import hooked, only_weights_count


@pytest.mark.parametrize("of", ["forward_hook", "forward_pre_hook", "full_backward_hook",
                                "full_backward_pre_hook"])  # fmt: skip
@pytest.mark.parametrize("whose", ["its own", "all modules'"])
def test_a_hook_has_to_be_called(of, whose):
    linear = nn.Linear(2, 2)
    assert only_weights_count(linear, nn.Linear)
    if whose == "its own":
        hook = getattr(linear, f"register_{of}")(lambda *_: None)
    else:
        hook = getattr(torch_module, f"register_module_{of}")(lambda *_: None)
    try:
        assert hooked(linear)
        assert not only_weights_count(linear, nn.Linear)
    finally:
        hook.remove()
    assert only_weights_count(linear, nn.Linear)
