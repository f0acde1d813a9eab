"""What does a whole training step of a language model cost? Ours against plain PyTorch.

Sizes, dropouts, losses and optimizer are those of the recipes. The plain models are what one writes
by hand: nn.Embedding, nn.LSTM, F.linear and F.cross_entropy, with tied weights and with the maps of
the paper's layer. All read the same batch and take the same step, theirs by torch's own
optimizer. On a GPU ours come twice: launched, and replayed as `drill train` does.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from cases import Case, add_layer_options, cases, parser
from measure import Prepare, Report, Step, measure
from torch import Tensor, nn
from torch.func import functional_call

from drill.data import Segment, SequenceLengths, Vocabulary
from drill.language_modeling import build
from drill.language_modeling.step import CapturedSteps, LanguageModelState, Steps
from drill.training.build import build_optimizer
from drill.training.settings import Settings, recipe

BASE = "plain nn.LSTM + F.cross_entropy"
RECIPES = {
    "demo": ("demo-tied", "demo-drill"),
    "ptb": ("ptb-tied", "ptb-drill-4"),
    "wt2": ("wt2-tied", "wt2-drill-4"),
}
# Over a tied layer; else as the tied recipe.
MIXTURE = ("layer.name=mixture", "layer.experts=15", "layer.dropout=0.29")


class Plain(nn.Module):
    """The same model without this package, from the settings of an AWD-LSTM and of its layer."""

    def __init__(self, labels: int, encoder: dict[str, Any], layer: dict[str, Any]) -> None:
        super().__init__()
        tied = layer["name"] == "tied"
        width, hidden, layers = (encoder[key] for key in ("embedding_dim", "hidden_size", "layers"))
        self.dropped = {key.removeprefix("dropout_"): p for key, p in encoder.items()}
        self.embedding = nn.Embedding(labels, width)
        widths = [width, *[hidden] * (layers - 1), width]
        self.lstms = nn.ModuleList(nn.LSTM(*pair) for pair in pairwise(widths))
        self.maps = nn.ModuleList(
            nn.Linear(width, width) for _ in range(0 if tied else layer["depth"])
        )
        self.layer = layer
        self.bias = nn.Parameter(torch.zeros(labels))

    def labels(self) -> Tensor:
        E = X = self.embedding.weight
        for linear in self.maps:
            p = self.layer["dropout"]
            dropped = locked(X, p) if self.layer["locked"] else F.dropout(X, p)
            X = getattr(torch, self.layer["activation"])(linear(dropped)) + E
        return X

    def forward(
        self, ids: Tensor, targets: Tensor, state: list, ar_weight: float, tar_weight: float
    ) -> tuple[Tensor, list]:
        p, weight = self.dropped, self.embedding.weight
        if p["embedding"]:
            rows = F.dropout(torch.ones(len(weight), 1, device=ids.device), p["embedding"])
            weight = weight * rows
        x = locked(F.embedding(ids, weight), p["input"])
        after = []
        for i, lstm in enumerate(self.lstms):
            if i:
                x = locked(x, p["hidden"])
            dropped = {"weight_hh_l0": F.dropout(lstm.weight_hh_l0, p["weight_drop"])}
            x, carried = functional_call(lstm, dropped, (x, state[i]))
            after.append(tuple(each.detach() for each in carried))
        output = locked(x, p["output"])
        logits = F.linear(output, self.labels(), self.bias)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        if ar_weight:
            loss = loss + ar_weight * output.pow(2).mean()
        if tar_weight:
            loss = loss + tar_weight * (x[1:] - x[:-1]).pow(2).mean()
        return loss, after


def locked(x: Tensor, p: float) -> Tensor:
    return x * F.dropout(x.new_ones(1, *x.shape[1:]), p)


def sized(name: str, case: Case, changes: Sequence[str] = ()) -> Settings:
    """The recipe; a try-out makes its embedding narrower."""
    return recipe(name, changes).changed(encoder={"embedding_dim": case.size.width})


def plain_optimizer(table: dict[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    """torch's own with the options of ours: AdamW in one pass, biases without decay."""
    lr, weight_decay = table["lr"], table["weight_decay"]
    if table["name"] == "adamw":
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        options = {"betas": (table["beta1"], table["beta2"]), "eps": table["eps"]}
        return torch.optim.AdamW(groups, lr, weight_decay=weight_decay, fused=True, **options)
    assert table["name"] == "nt-asgd", table  # SGD until it starts to average
    return torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)


def vocabulary(labels: int) -> Vocabulary:
    return Vocabulary(["<eos>", *map(str, range(1, labels))], [1] * labels)


def plain_step(chosen: Settings, model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    """A step as one writes it by hand."""
    optimizer = plain_optimizer(chosen.optimizer, model)

    def step() -> list[Tensor]:
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), chosen.optimizer["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()
        return [value.detach()]

    return step


def our_step(
    chosen: Settings, case: Case, data: Tensor, kind: type[Steps | CapturedSteps] = Steps
) -> Step:
    """A step of `drill train` over all rows of ``data``."""
    model = build.language_model(chosen, vocabulary(case.size.labels), case.device)
    optimizer = build_optimizer(chosen)
    optimizer.setup(model.train().named_parameters())
    if chosen.training["compile"]:
        model.encoder.compile()
    options = {key: chosen.training[key] for key in ("ar_weight", "tar_weight")} | {"check": False}
    bptt, half = chosen.training["bptt"], case.matmul_dtype == torch.bfloat16
    autocast = torch.bfloat16 if half else None
    steps = kind(model, data, optimizer, bptt=bptt, autocast=autocast, options=options)
    state = LanguageModelState(
        epochs=1,
        epoch_size=len(data),
        lengths=SequenceLengths(1, bptt),
        nll=torch.zeros((), dtype=torch.float64, device=data.device),
        data_checksum=0,
    )
    segment = Segment(0, len(data) - 1, len(data) - 1)

    def step() -> list[Tensor]:
        steps(state, segment, 0.5)
        return [state.nll]

    return step


def variants(case: Case, options: Sequence[str] = ()) -> dict[str, Prepare]:
    labels, device = case.size.labels, case.device
    tied, deep = (sized(name, case) for name in RECIPES[case.name])
    batch = tied.training["batch_size"]
    weights = {key: tied.training[key] for key in ("ar_weight", "tar_weight")}
    ids = torch.randint(labels, (case.size.tokens // batch + 1, batch), device=device)
    inputs, targets = ids[:-1], ids[1:]

    def plain(chosen: Settings) -> Step:
        model = Plain(labels, chosen.encoder, chosen.layer).to(device)
        state = [
            tuple(torch.zeros(1, batch, lstm.hidden_size, device=device) for _ in "hc")
            for lstm in model.lstms
        ]

        def loss() -> Tensor:
            nonlocal state
            with case.autocast():
                value, state = model(inputs, targets, state, **weights)
            return value

        return plain_step(chosen, model, loss)

    depth = deep.layer["depth"]
    made = {BASE: partial(plain, tied), f"{BASE}, deep-residual {depth}": partial(plain, deep)}
    named = {"drill tied": tied, f"drill deep-residual {depth}": deep}
    if case.name != "demo":
        named["drill mixture 15"] = sized(RECIPES[case.name][0], case, MIXTURE)
    for each in options:
        changes = [f"layer.{change}" for change in each.split(",")]
        name = f"drill deep-residual {depth}, {each}"
        named[name] = sized(RECIPES[case.name][1], case, changes)
    for name, chosen in named.items():
        made[name] = partial(our_step, chosen, case, ids)
        if device.type == "cuda":
            made[f"{name}, replayed"] = partial(our_step, chosen, case, ids, CapturedSteps)
    return made


def main() -> None:
    options = parser(__doc__, tuple(RECIPES))
    add_layer_options(options)
    args = options.parse_args()
    report = Report("step", args)
    # Parameters are float32 in training.
    for case in cases(args, tuple(RECIPES), on_cuda=("tf32", "autocast")):
        # A step of an optimizer is no CUDA graph as it is.
        results = measure(variants(case, args.options), args, no_graph=("plain", "drill"))
        for name, row in results.items():
            kind = name.removeprefix("drill ").removesuffix(", replayed")
            own = BASE if kind == "tied" else f"{BASE}, {kind}"
            row |= {"own_plain": own} if own in results else {}  # a mixture has none
        report.add(case, results)
    report.finish(
        "a step of the recipe: loss, gradients, clipping, update; the same dropouts everywhere"
    )


if __name__ == "__main__":
    main()
