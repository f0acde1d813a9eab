import pytest

from drill.kernels.label_encoder import encode_labels
from drill.kernels.runtime.dispatch import INTERPRETED


@pytest.fixture
def choose_products(monkeypatch):
    """Sets who multiplies in the fused label encoder."""

    def choose(products: str) -> None:
        if products == "cublas":
            from drill.kernels.label_encoder.pointwise import PointwiseEncode

            monkeypatch.setattr(encode_labels, "_function", lambda *given: PointwiseEncode)

    return choose


@pytest.fixture
def few_programs(monkeypatch):
    """Larger tiles in the fused label encoder: the interpreter runs one after the other.

    A width of 144 still has three of them in a row, the last one ragged.
    """
    if not INTERPRETED:
        return
    monkeypatch.setattr("drill.kernels.label_encoder.dropout_bits._BLOCK", 8192)
    monkeypatch.setattr("drill.kernels.label_encoder.locked.locked_encode._U_ROWS", 64)
    monkeypatch.setattr("drill.kernels.label_encoder.locked.locked_encode._ROWS", 64)
