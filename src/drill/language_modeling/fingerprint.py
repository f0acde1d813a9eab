"""What a result belongs to: hashes of a model's weights and of a text, so that no file is stale."""

import hashlib
import json

import torch
from torch import Tensor, nn


def weights_fingerprint(model: nn.Module) -> str:
    """sha256 of every parameter and buffer, bit for bit, and of the settings of every module.

    Equal where models compute the same numbers in evaluation; the mode does not count.
    """
    digest = hashlib.sha256(json.dumps(_settings(model)).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def text_fingerprint(data: Tensor) -> str:
    """sha256 of ids (rows, columns), int64, and of how they are laid out."""
    digest = hashlib.sha256(f"{tuple(data.shape)}\n".encode())
    digest.update(_bytes(data))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().view(-1)  # numpy has no bfloat16
    return flat.view(torch.uint8).numpy().data


def _settings(model: nn.Module) -> list[tuple[str, dict[str, object]]]:
    """Class and plain values of every module: weights alone do not tell a sigmoid from a relu."""
    plain = (bool, int, float, str, tuple)
    return [
        (
            f"{name}: {type(module).__name__}",
            {
                key: repr(value)
                for key, value in vars(module).items()
                if isinstance(value, plain) and not key.startswith("_") and key != "training"
            },
        )
        for name, module in model.named_modules()
    ]
