import pytest

from drill.kernels import label_encoder


@pytest.fixture
def multiply(monkeypatch):
    """Sets who multiplies in the fused label encoder."""

    def choose(products: str) -> None:
        if products == "cublas":
            from drill.kernels.label_encoder_triton import PointwiseEncode

            monkeypatch.setattr(label_encoder, "_function", lambda *given: PointwiseEncode)

    return choose
