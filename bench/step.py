"""What does a whole training step of a language model cost? Ours against plain PyTorch.

The plain model is what one writes by hand: nn.Embedding, nn.LSTM, F.linear and F.cross_entropy with
the same sizes and dropouts. Both read the same batch and take a step of the same optimiser.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from setting import Setting, parser, settings
from table import Report, mib, ratio
from timing import Prepare, Step, measure
from torch import Tensor, nn
from torch.func import functional_call

from drill.encoders import AwdLstm
from drill.layers import DeepResidual, OutputLayer, TiedSoftmax
from drill.models import LanguageModel
from drill.optim import NtAsgd

BASE = "plain nn.LSTM + F.cross_entropy"
BATCH = 20
HIDDEN = {"demo": (192, 2), "ptb": (1150, 3)}  # width of the inner LSTMs, and how many LSTMs
NAMES = tuple(HIDDEN)
DROPOUTS = {"embedding": 0.1, "input": 0.4, "hidden": 0.25, "output": 0.4}
WEIGHT_DROP = 0.5
OPTIMIZER = {"lr": 30.0, "weight_decay": 1.2e-6}
CLIP = 0.25


class Plain(nn.Module):
    """The same model without this package."""

    def __init__(self, labels: int, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(labels, width)
        widths = [width, *[hidden] * (layers - 1), width]
        self.lstms = nn.ModuleList(nn.LSTM(*pair) for pair in pairwise(widths))
        self.bias = nn.Parameter(torch.zeros(labels))

    def forward(self, ids: Tensor, targets: Tensor, state: list) -> tuple[Tensor, list]:
        weight = self.embedding.weight
        rows = F.dropout(torch.ones(len(weight), 1, device=ids.device), DROPOUTS["embedding"])
        x = locked(F.embedding(ids, weight * rows), DROPOUTS["input"])
        after = []
        for i, lstm in enumerate(self.lstms):
            if i:
                x = locked(x, DROPOUTS["hidden"])
            dropped = {"weight_hh_l0": F.dropout(lstm.weight_hh_l0, WEIGHT_DROP)}
            x, carried = functional_call(lstm, dropped, (x, state[i]))
            after.append(tuple(each.detach() for each in carried))
        logits = F.linear(locked(x, DROPOUTS["output"]), weight, self.bias)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), after


def locked(x: Tensor, p: float) -> Tensor:
    return x * F.dropout(x.new_ones(1, x.shape[1], x.shape[2]), p)


def contestants(setting: Setting) -> dict[str, Prepare]:
    tokens, labels, width = setting.size
    hidden, layers = HIDDEN[setting.name]
    ids = torch.randint(labels, (tokens // BATCH + 1, BATCH), device=setting.device)
    inputs, targets = ids[:-1], ids[1:]

    def plain() -> Step:
        model = Plain(labels, width, hidden, layers).to(setting.device)
        optimizer = torch.optim.SGD(model.parameters(), **OPTIMIZER)
        state = [
            tuple(torch.zeros(1, BATCH, lstm.hidden_size, device=setting.device) for _ in "hc")
            for lstm in model.lstms
        ]

        def step() -> list[Tensor]:
            nonlocal state
            with setting.autocast():
                loss, state = model(inputs, targets, state)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            return [loss.detach()]

        return step

    def ours(layer: type[OutputLayer], **options: object) -> Prepare:
        def prepare() -> Step:
            embedding = nn.Embedding(labels, width)
            drops = {f"dropout_{name}": p for name, p in DROPOUTS.items()}
            encoder = AwdLstm(embedding, hidden, layers, **drops, weight_drop=WEIGHT_DROP)
            model = LanguageModel(encoder, layer(embedding, **options)).to(setting.device)
            rule = NtAsgd(OPTIMIZER["lr"], weight_decay=OPTIMIZER["weight_decay"], clip=CLIP)
            rule.begin(model.named_parameters())
            state = model.initial_state(BATCH)

            def step() -> list[Tensor]:
                nonlocal state
                with setting.autocast():
                    loss = model(inputs, targets, state, activation=0.0, slowness=0.0, check=False)
                state = loss.state
                loss.total.backward()
                rule.step(sampled_length=70, bptt=70, progress=0.0)
                return [loss.nll]

            return step

        return prepare

    return {
        BASE: plain,
        "drill tied": ours(TiedSoftmax),
        "drill deep-residual 4": ours(DeepResidual, depth=4, dropout=0.6),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", nargs="+", choices=NAMES, help="default: all; on a CPU demo")
    args = options.parse_args()
    if args.dtype is None and args.device.type == "cuda":
        args.dtype = ["tf32", "autocast"]  # parameters are float32 in training
    report = Report("step", args.device, args.json)
    for setting in settings(args, NAMES):
        results = measure(
            contestants(setting),
            args.device,
            seconds=0 if args.quick else args.seconds,
            waiting=("plain", "drill"),  # a step of an optimiser is no CUDA graph as it stands
        )
        columns = {"x plain": ratio(results[BASE]), "peak MiB": lambda result: mib(result.peak)}
        report.add(setting, results, columns)
    report.note("a step: loss, gradients, clipping, update; the same dropouts everywhere")
    report.finish()


if __name__ == "__main__":
    main()
