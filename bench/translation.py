"""How fast is a translator trained and searched? Ours against MarianMT of the same size.

Training: loss with label smoothing, gradients, a step of fused Adam; launched kernel by kernel, and
both models as CUDA graphs too. Search: a beam of 4, all translations of one length, the same
weights on both sides; only ours has graphs, their loop asks the device at every token whether all
is done. MarianMT is that of transformers.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from setting import Setting, parser, settings
from table import Report, mib
from timing import Prepare, Result, Step, measure
from torch import Tensor, nn

from drill.layers import DeepResidual, OutputLayer, TiedSoftmax
from drill.models import Transformer
from drill.models.translator import Translator
from drill.training.captured_gradients import CapturedGradients
from drill.translation.export_marian import marian_weights
from drill.translation.search.search import Decoding, beam_search, encoded_once

BASE = "MarianMT"
REPLAYED = f"{BASE}, CUDA graph"
SIZES = {"multi30k": (4, 4, 1024), "nmt": (6, 8, 2048)}  # blocks, heads, inner width
NAMES = tuple(SIZES)
PAD, BEGIN, END = 0, 1, 2
IGNORE = -100
TASKS = ("training", "search")
LENGTH = 32  # tokens of every sentence, on both sides
BEAM = 4
SMOOTHING = 0.1
LAYERS: dict[str, Callable[[nn.Embedding], OutputLayer]] = {
    "tied": TiedSoftmax,
    "deep-residual 2": lambda embedding: DeepResidual(embedding, depth=2),
}


def translator(setting: Setting, layer: str) -> Translator:
    """Random weights that never end a sentence by themselves; post-norm, as MarianMT is."""
    torch.manual_seed(0)
    blocks, heads, inner = SIZES[setting.name]
    embedding = nn.Embedding(setting.size.labels, setting.size.width)
    sizes = {"layers": blocks, "heads": heads, "feedforward": inner, "norm": "post"}
    transformer = Transformer(embedding, **sizes, pad=PAD, init_embeddings=True)
    model = Translator(transformer, LAYERS[layer](embedding))
    with torch.no_grad():
        model.layer.bias[END] = -1e4
    return model.to(setting.device)


def marian(setting: Setting) -> nn.Module:
    """The tied translator's weights in the other library's model."""
    from transformers import MarianConfig, MarianMTModel

    config, tensors = marian_weights(translator(setting, "tied"), positions=128)
    model = MarianMTModel(MarianConfig(**config)).to(setting.device)
    held = {"lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"}  # tied
    report = model.load_state_dict(tensors, strict=False)
    assert {name.removesuffix(".weight") for name in report.missing_keys} <= held, report
    return model


# -- training -------------------------------------------------------------------------------------


def pairs(setting: Setting, padded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target_in and target_out; padded, lengths lie between three quarters and all."""
    rows = max(1, setting.size.tokens // LENGTH)
    ids = torch.randint(3, setting.size.labels, (3, rows, LENGTH), device=setting.device)
    if padded:
        lengths = torch.randint(3 * LENGTH // 4, LENGTH + 1, (2, rows, 1), device=setting.device)
        beyond = torch.arange(LENGTH, device=setting.device) >= lengths  # (2, rows, LENGTH)
        ids[0][beyond[0]] = PAD
        ids[1][beyond[1]] = PAD
        ids[2][beyond[1]] = IGNORE
    return ids[0], ids[1], ids[2]


def training(
    setting: Setting, batch: tuple[Tensor, Tensor, Tensor], compiled: bool
) -> dict[str, Prepare]:
    def theirs(graph: bool = False, compile_it: bool = False) -> Prepare:
        def prepare() -> Step:
            model = marian(setting).train()
            run = torch.compile(model) if compile_it else model

            def loss(source: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
                with setting.autocast():
                    logits = run(
                        input_ids=source,
                        attention_mask=(source != PAD).long(),
                        decoder_input_ids=target_in,
                        use_cache=False,
                    ).logits
                    return F.cross_entropy(
                        logits.flatten(0, 1),
                        target_out.flatten(),
                        ignore_index=IGNORE,
                        label_smoothing=SMOOTHING,
                    )

            return update(model, loss, batch, graph)

        return prepare

    def ours(layer: str, graph: bool = False, compile_it: bool = False) -> Prepare:
        def prepare() -> Step:
            model = translator(setting, layer).train()
            run = torch.compile(model) if compile_it else model

            def loss(*batch: Tensor) -> Tensor:
                with setting.autocast():
                    return run(*batch, label_smoothing=SMOOTHING, ignore_index=IGNORE, check=False)

            return update(model, loss, batch, graph)

        return prepare

    contestants = {BASE: theirs()}
    if setting.device.type == "cuda":
        contestants[REPLAYED] = theirs(graph=True)
    if compiled:
        contestants[f"{BASE}, torch.compile"] = theirs(compile_it=True)
    for layer in LAYERS:
        contestants[f"drill {layer}"] = ours(layer)
        if setting.device.type == "cuda":
            contestants[f"drill {layer}, CUDA graph"] = ours(layer, graph=True)
        if compiled:
            contestants[f"drill {layer}, torch.compile"] = ours(layer, compile_it=True)
    return contestants


def update(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: tuple[Tensor, Tensor, Tensor],
    graph: bool,
) -> Step:
    """A training step: gradients launched kernel by kernel or replayed, then Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
    captured = CapturedGradients(model, loss)

    def launched() -> Tensor:
        value = loss(*batch)
        value.backward()
        return value.detach()

    def step() -> list[Tensor]:
        value = captured(*batch) if graph else launched()
        optimizer.step()
        optimizer.zero_grad()
        return [value]

    return step


# -- search ---------------------------------------------------------------------------------------


def search(setting: Setting, sentences: int, stack: ExitStack) -> dict[str, Prepare]:
    ids = torch.randint(3, setting.size.labels, (sentences, LENGTH), device=setting.device)
    ids[:, -1] = END

    def theirs() -> Step:
        model = marian(setting).to(setting.parameters).eval()
        seen = torch.ones_like(ids)

        def step() -> list[Tensor]:
            with torch.no_grad(), setting.autocast():
                written = model.generate(
                    input_ids=ids,
                    attention_mask=seen,
                    num_beams=BEAM,
                    max_length=LENGTH + 1,
                    do_sample=False,
                )
            assert written.shape == (sentences, LENGTH + 1)  # <begin> is counted there
            return [written]

        return step

    def ours(layer: str, graph: bool | None = None) -> Prepare:
        def prepare() -> Step:
            model = translator(setting, layer).to(setting.parameters).eval()
            head = stack.enter_context(encoded_once(model))
            decoding = Decoding(
                BEGIN,
                END,
                max_ratio=0.0,
                max_extra=LENGTH,
                batch_tokens=ids.numel(),
                autocast=torch.bfloat16 if setting.dtype == "autocast" else None,
                graph=graph,
            )
            sources = ids.tolist()

            def step() -> list[Tensor]:
                found = beam_search(model, sources, decoding, beam=BEAM, head=head)
                assert all(len(best.ids) == LENGTH - 1 for best, *_ in found)
                return []

            return step

        return prepare

    contestants = {BASE: theirs}
    for layer in LAYERS:
        contestants[f"drill {layer}"] = ours(layer)
    if setting.device.type == "cuda":
        contestants["drill tied, graph=False"] = ours("tied", graph=False)
    return contestants


# -------------------------------------------------------------------------------------------------


def rate(results: dict[str, Result], each: str, amount: int) -> dict[str, Callable[[Result], str]]:
    """Columns: ``amount`` things a step, in things a second, and against MarianMT both ways."""
    for result in results.values():
        if result.ms:
            result.found[f"{each.replace(' ', '_')}_per_second"] = 1e3 * amount / result.median

    def against(base: Result) -> Callable[[Result], str]:
        return lambda result: f"{base.median / result.median:.2f}" if base.ms else "-"

    return {
        "rate": lambda result: f"{1e3 * amount / result.median:,.0f} {each}/s",
        **{f"x {name}": against(results[name]) for name in (BASE, REPLAYED) if name in results},
        "peak MiB": lambda result: mib(result.peak),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", nargs="+", choices=NAMES, help="default: all; on a CPU multi30k")
    options.add_argument("--sentences", type=int, nargs="+", default=[64], help="searched at once")
    options.add_argument("--padded", action="store_true", help="train on sentences of all lengths")
    options.add_argument("--compile", action="store_true", help="also with torch.compile: minutes")
    options.add_argument("--task", nargs="+", choices=TASKS, default=TASKS, help="default: both")
    args = options.parse_args()
    cuda = args.device.type == "cuda"
    seconds = 0 if args.quick else args.seconds
    rounds = (1, 1) if args.quick else (5, 100)
    report = Report("translation", args.device, args.json)
    if args.dtype is None:
        args.dtype = ["autocast"] if cuda else ["float32"]  # parameters are float32 in training
    for setting in settings(args, NAMES):
        batch = pairs(setting, args.padded)
        if "training" in args.task:
            contestants = training(setting, batch, args.compile)
            # Nothing here is captured as it stands: an optimiser counts its steps on the host.
            results = measure(
                contestants, args.device, seconds=seconds, rounds=rounds, waiting=tuple(contestants)
            )
            columns = rate(results, "target tokens", int((batch[2] != IGNORE).sum()))
            row = {"task": "training", "length": LENGTH, "padded": args.padded}
            report.add(setting, results, columns, **row)
        deployed = "bfloat16" if setting.dtype == "autocast" else setting.dtype
        searches = ([4] if args.quick else args.sentences) if "search" in args.task else []
        for sentences in searches:
            size = setting.size._replace(tokens=sentences * LENGTH)
            searched = Setting(setting.name, size, deployed, setting.device)
            with ExitStack() as stack:
                contestants = search(searched, sentences, stack)
                results = measure(
                    contestants,
                    args.device,
                    seconds=seconds,
                    rounds=rounds,
                    waiting=tuple(contestants),
                )
            columns = rate(results, "sentences", sentences)
            report.add(searched, results, columns, task="search", beam=BEAM, length=LENGTH)
    report.note("CUDA graph: forward and backward are replayed; Adam is launched on both sides")
    report.note(f"search: beam {BEAM}, {LENGTH} tokens a sentence, the same weights on both sides")
    report.finish()


if __name__ == "__main__":
    main()
