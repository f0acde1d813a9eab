"""Encoders (ids -> hidden states), and models: an encoder with an output layer."""

from drill.models.awd_lstm import AwdLstm
from drill.models.encoder import Encoded, Encoder
from drill.models.hf_encoder import HfEncoder
from drill.models.language_model import LanguageModel
from drill.models.recurrent_highway import RecurrentHighway
from drill.models.transformer.transformer import Transformer
from drill.models.translator import Translator

ENCODERS: dict[str, type[Encoder]] = {
    "awd-lstm": AwdLstm,
    "rhn": RecurrentHighway,
    "hf": HfEncoder,
}
"""Every encoder of a language model by name; each takes the model's embedding first."""

__all__ = [
    "ENCODERS",
    "AwdLstm",
    "Encoded",
    "Encoder",
    "HfEncoder",
    "LanguageModel",
    "RecurrentHighway",
    "Transformer",
    "Translator",
]
