"""Encoders: ids -> hidden states. They know no output layer."""

from drill.encoders.awd_lstm import AwdLstm
from drill.encoders.base import Encoded, Encoder, State

ENCODERS: dict[str, type[Encoder]] = {"awd-lstm": AwdLstm}
"""Every encoder by name; each takes the model's embedding first."""

__all__ = ["ENCODERS", "AwdLstm", "Encoded", "Encoder", "State"]
