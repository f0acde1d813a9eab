"""Muon for the matrices inside a model, AdamW for all other parameters."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from drill.layers import LAYERS
from drill.training.optim.adamw import AdamW
from drill.training.run.checkpoint import sharded_as

TABLES = ("emb", "wte", "wpe")  # in what encoders call modules whose rows are looked up


def is_table(name: str) -> bool:
    """Whether a parameter of a model has a row for each word, position, label or cluster."""
    owner, *path = name.split(".")
    if owner == "layer":
        row_names = (row_name for kind in LAYERS.values() for row_name in kind.row_parameters)
        return any(row_name in path for row_name in row_names)
    return any(table in part for part in (owner, *path) for table in TABLES)


@dataclass(eq=False, kw_only=True)
class Muon(AdamW):
    """Momentum whose matrix is orthogonalised before the step (Jordan et al., 2024).

    Hidden matrices and label maps step by Muon; vectors, embeddings and what else has a row for
    each label or cluster (``is_table``) by AdamW. Both share lr, weight decay and schedule. A
    matrix steps by Muon as far as by AdamW, but the best lr may be another one: in a small Llama
    it is four times as high.

    Args:
        momentum: of Muon.

    Other arguments are those of ``AdamW``.
    """

    momentum: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("momentum", 0.0 <= self.momentum < 1.0, "in [0, 1)")

    def build(self) -> Optimizer:
        named = self.parameters.items()
        inner = {name: p for name, p in named if p.dim() == 2 and not is_table(name)}
        others = {name: p for name, p in named if name not in inner}
        optimizers: list[Optimizer] = []
        if inner:
            shared = {"lr": self.lr, "momentum": self.momentum}
            optimizers.append(OrthogonalMomentum(self.groups(inner), shared))
        if others:
            optimizers.append(self.adam(others))
        return Combined(optimizers)

    def capture_blocker(self) -> str | None:
        return "Muon reads its learning rate on the host"


class OrthogonalMomentum(Optimizer):
    """m <- mu m + (1 - mu) g;  W <- (1 - lr decay) W - lr 0.2 sqrt(max(W.shape)) orth(nesterov m).

    The factor gives a step the root mean square of AdamW's.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                mean = state["momentum"].lerp_(p.grad, 1.0 - momentum)
                update = p.grad.lerp(mean, momentum)
                if hasattr(update, "full_tensor"):  # sharded by FSDP; all of it is needed
                    update = update.full_tensor()
                update = sharded_as(p, orthogonalized(update))
                p.mul_(1.0 - lr * group["weight_decay"])
                p.add_(update, alpha=-lr * 0.2 * math.sqrt(max(p.shape)))


def orthogonalized(matrix: Tensor, steps: int = 5) -> Tensor:
    """About U V^T of U S V^T, by Newton-Schulz: singular values come to lie near 1.

    In bfloat16 on a GPU. Not on a CPU: one without bfloat16 units would switch oneDNN off.
    """
    x = matrix.to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.t()
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.t()
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return (x if wide else x.t()).to(matrix.dtype)


class Combined(Optimizer):
    """Several optimizers of different parameters as one."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.optimizers = optimizers
        super().__init__([p for o in optimizers for g in o.param_groups for p in g["params"]], {})
        self.param_groups = [group for o in optimizers for group in o.param_groups]
        for optimizer in optimizers:
            optimizer.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()
