"""What a Transformer is given, before anything is computed with it."""

import torch
from torch import Tensor, nn


def common_width(source: nn.Embedding, target: nn.Embedding) -> int:
    for embedding in (source, target):
        if not isinstance(embedding, nn.Embedding):
            raise TypeError(
                "Transformer: the first arguments are the model's nn.Embeddings, "
                f"not {type(embedding).__name__}"
            )
    a, b = source.embedding_dim, target.embedding_dim
    if a != b:
        raise ValueError(
            f"Transformer: the source embedding has width {a} and the target embedding {b}; "
            "give both one width"
        )
    return a


def check_ids(what: str, ids: Tensor, dims: int, rows: int | None = None) -> None:
    shape = "(B, T)" if dims == 2 else "(B*K,)"
    if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != dims or ids.shape[0] == 0:
        raise TypeError(
            f"Transformer: {what} is whole numbers of shape {shape}, not {ids.dtype} "
            f"{tuple(ids.shape)}; a single sentence has one row"
        )
    if rows is not None and ids.shape[0] != rows:
        raise ValueError(
            f"Transformer: {what} has {ids.shape[0]} rows, but the encoded source has {rows}; "
            "give a row for each"
        )
