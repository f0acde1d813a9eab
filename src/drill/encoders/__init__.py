"""Encoders: ids -> hidden states. They know no output layer."""

from drill.encoders.awd_lstm import AwdLstm
from drill.encoders.base import Encoded, Encoder, State

__all__ = ["AwdLstm", "Encoded", "Encoder", "State"]
