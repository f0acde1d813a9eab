"""Draws from log-probabilities, by hand and by their definition."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drill.models.token_sampling import check_sampling, draw


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_draws_by_hand():
    p = double(0.1, 0.4, 0.0, 0.3, 0.2)

    def drawn(*u: float, **options) -> list[int]:
        return draw(p.log().expand(len(u), -1), double(*u), **options).tolist()

    assert drawn(0.0, 0.09, 0.11, 0.49, 0.51, 0.79, 0.81) == [0, 0, 1, 1, 3, 3, 4]
    # 0.4 and 0.3 are left: 4/7 and 3/7
    assert drawn(0.0, 0.57, 0.58, 0.999, top_k=2) == [1, 1, 3, 3]
    # 0.4, 0.3 and 0.2 make it up: 4/9, 3/9, 2/9
    assert drawn(0.44, 0.45, 0.77, 0.78, 0.999, top_p=0.75) == [1, 3, 3, 4, 4]
    assert drawn(0.0, 0.999, top_k=2, top_p=0.5) == [1, 1]
    roots = p.sqrt() / p.sqrt().sum()
    edge = float(roots[0] + roots[1])
    assert drawn(edge - 1e-9, edge + 1e-9, temperature=2.0) == [1, 3]
    assert drawn(0.0, 0.999, temperature=0.0) == drawn(0.0, 0.999, temperature=1e-300) == [1, 1]
    last = double(0.5, 0.5, 0.0).log()
    assert int(draw(last, torch.tensor(1.0, dtype=torch.float64))) == 1  # never probability 0


@given(
    scores=st.lists(st.floats(-30, 5) | st.just(-math.inf), min_size=1, max_size=12),
    u=st.floats(0, 1, exclude_max=True),
    temperature=st.floats(0.01, 50),
    top_k=st.none() | st.integers(1, 15),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
)
def test_draws_follow_the_distribution_over_the_likeliest(scores, u, temperature, top_k, top_p):
    log_p = double(0.0, *scores)
    p = torch.softmax(log_p / temperature, 0)
    likeliest, order = p.sort(descending=True, stable=True)
    kept = len(p) if top_k is None else min(top_k, len(p))
    mass = likeliest[:kept].cumsum(0)
    if top_p is not None:  # rounding may move the border by one
        kept = 1 + int((mass[:-1] < top_p * mass[-1] * (1 + 1e-9)).sum())
    place = int(draw(log_p, torch.tensor(u, dtype=torch.float64), temperature, top_k, top_p))
    assert p[place] > 0
    assert place in order[:kept]
    if top_k is None and top_p is None:
        assert float(p[:place].sum()) <= u + 1e-9
        assert u <= float(p[: place + 1].sum()) + 1e-9


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("temperature", value) for value in (math.nan, -1.0, math.inf)),
        *(("top_k", value) for value in (0, 2.5)),
        *(("top_p", value) for value in (0.0, 1.1, math.nan)),
        ("seed", -1),
    ],
)
def test_invalid_options_raise(option, value):
    options = {"temperature": 1.0, "top_k": None, "top_p": None, "seed": None, option: value}
    with pytest.raises(ValueError, match=f"^generate: {option} must be"):
        check_sampling("generate", **options)
