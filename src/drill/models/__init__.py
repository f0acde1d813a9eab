"""Encoders: ids -> hidden states. They know no output layer."""

from drill.models.awd_lstm import AwdLstm
from drill.models.encoder import Encoded, Encoder, State
from drill.models.hf_encoder import HfEncoder
from drill.models.recurrent_highway import RecurrentHighway
from drill.models.transformer.decoding_cache import Cache
from drill.models.transformer.transformer import Memory, Transformer

ENCODERS: dict[str, type[Encoder]] = {
    "awd-lstm": AwdLstm,
    "rhn": RecurrentHighway,
    "hf": HfEncoder,
}
"""Every encoder of a language model by name; each takes the model's embedding first."""

__all__ = [
    "ENCODERS",
    "AwdLstm",
    "Cache",
    "Encoded",
    "Encoder",
    "HfEncoder",
    "Memory",
    "RecurrentHighway",
    "State",
    "Transformer",
]
