"""Encoders: ids -> hidden states. They know no output layer."""

from drill.encoders.awd_lstm import AwdLstm
from drill.encoders.base import Encoded, Encoder, State
from drill.encoders.transformer import Memory, Transformer
from drill.encoders.transformer_cache import Cache

ENCODERS: dict[str, type[Encoder]] = {"awd-lstm": AwdLstm}
"""Every encoder of a language model by name; each takes the model's embedding first."""

__all__ = [
    "ENCODERS",
    "AwdLstm",
    "Cache",
    "Encoded",
    "Encoder",
    "Memory",
    "State",
    "Transformer",
]
