import pytest

from drill.kernels.label_encoder import encode_labels


@pytest.fixture
def choose_products(monkeypatch):
    """Sets who multiplies in the fused label encoder."""

    def choose(products: str) -> None:
        if products == "cublas":
            from drill.kernels.label_encoder.pointwise import PointwiseEncode

            monkeypatch.setattr(encode_labels, "_function", lambda *given: PointwiseEncode)

    return choose
