"""What do the LSTMs of AWD-LSTM cost, forward and backward? Ours against cuDNN.

The paper's three layers with weight drop, without embedding and locked dropout: 400 to 1150 to 1150
to 400, 70 steps, batch 20 (ptb) and 80 (wt2). Parameters are float32, as in training.
"""

from itertools import pairwise

import torch
from setting import Setting, parser, settings, training_step
from table import Report, device_ratio, mib, ratio
from timing import Prepare, Step, measure
from torch import Tensor, nn

from drill.kernels.lstm import Implementation, Weights, lstm

BASE = "cudnn"
NAMES = ("ptb", "wt2")
STEPS, QUICK_STEPS = 70, 7
WIDER = 2.875  # the inner layers: 1150 / 400
WEIGHT_DROP = 0.5


def contestants(setting: Setting, steps: int) -> dict[str, Prepare]:
    tokens, _, width = setting.size
    inner = int(WIDER * width)
    batch = tokens // steps

    def prepare(impl: Implementation) -> Step:
        torch.manual_seed(0)
        with torch.device(setting.device):
            layers = [nn.LSTM(*pair) for pair in pairwise([width, inner, inner, width])]
            x = torch.randn(steps, batch, width, requires_grad=True)
            states = [torch.zeros(1, batch, layer.hidden_size) for layer in layers]

        def loss() -> Tensor:
            hidden = x
            for layer, state in zip(layers, states, strict=True):
                weights = Weights(*layer.all_weights[0])
                inner = layer is not layers[-1]
                hidden, _, _ = lstm(
                    hidden, state, state, weights, impl, drop=WEIGHT_DROP, keep_padding=inner
                )
            return hidden.float().mean()

        given = [x, *(weight for layer in layers for weight in layer.parameters())]
        return training_step(loss, given, setting)

    # The others multiply in bfloat16 whatever the setting says.
    half = setting.products == torch.bfloat16
    impls: tuple[Implementation, ...] = (BASE, "persistent", "graph") if half else (BASE,)
    return {impl: lambda impl=impl: prepare(impl) for impl in impls}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", nargs="+", choices=NAMES, help="default: all; on a CPU ptb")
    args = options.parse_args()
    if args.dtype is None and args.device.type == "cuda":
        args.dtype = ["tf32", "autocast"]  # parameters are float32 in training
    report = Report("lstm", args.device, args.json)
    for setting in settings(args, NAMES):
        torch.backends.cudnn.allow_tf32 = setting.dtype == "tf32"
        results = measure(
            contestants(setting, QUICK_STEPS if args.quick else STEPS),
            args.device,
            seconds=0 if args.quick else args.seconds,
        )
        columns = {
            f"x {BASE}": ratio(results[BASE]),
            "graph x": device_ratio(results[BASE]),
            "MiB beyond gradients": lambda result: mib(result.working_memory),
        }
        report.add(setting, results, columns)
    report.note("forward and backward of three layers, 70 steps, weight drop included")
    report.note("graph ms: all of it as one CUDA graph; impl graph alone replays its own steps")
    report.finish()


if __name__ == "__main__":
    main()
