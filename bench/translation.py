"""How fast is a translator trained and searched? Ours against MarianMT of the same size.

Training: loss with label smoothing, gradients, a step of fused Adam; launched kernel by kernel, and
both models as CUDA graphs too. Search: a beam of 4, all translations of one length, the same
weights on both sides; only ours has graphs, their loop asks the device at every token whether all
is done. MarianMT is that of transformers.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case, add_layer_options, cases, parser
from measure import Prepare, Report, Step, add_rate, measure
from torch import Tensor, nn

from drill.layers import DeepResidual, OutputLayer, TiedSoftmax
from drill.models import Transformer
from drill.models.translator import Translator
from drill.recipes.reader import apply_overrides
from drill.training.cuda_graphs import CapturedGradients
from drill.translation import Search, beam_search, cached_head, exported_weights

BASE = "MarianMT"
# blocks, heads, inner width
SIZES = {"multi30k": (4, 4, 1024), "nmt": (6, 8, 2048), "big": (6, 16, 4096)}
NAMES = tuple(SIZES)
GRAPH, COMPILED = ", CUDA graph", ", torch.compile"
PAD, BEGIN, END = 0, 1, 2
TASKS = ("training", "search")
LENGTH = 32  # tokens of every sentence, on both sides
BEAM = 4
SMOOTHING = 0.1
TIMED_LAYERS: dict[str, Callable[[nn.Embedding], OutputLayer]] = {
    "tied": TiedSoftmax,
    "deep-residual 2": lambda embedding: DeepResidual(embedding, depth=2),
}


def translator(case: Case, layer: str) -> Translator:
    """Random weights that never end a sentence by themselves; post-norm, as MarianMT is."""
    torch.manual_seed(0)
    blocks, heads, inner = SIZES[case.name]
    embedding = nn.Embedding(case.size.labels, case.size.width)
    sizes = {"layers": blocks, "heads": heads, "feedforward": inner, "norm": "post"}
    transformer = Transformer(embedding, **sizes, pad=PAD, init_embeddings=True)
    model = Translator(transformer, TIMED_LAYERS[layer](embedding))
    with torch.no_grad():
        model.layer.bias[END] = -1e4
    return model.to(case.device)


def marian(case: Case) -> nn.Module:
    """The tied translator's weights in the other library's model."""
    from transformers import MarianConfig, MarianMTModel

    config, tensors = exported_weights(translator(case, "tied"), max_length=128)
    model = MarianMTModel(MarianConfig(**config)).to(case.device)
    tied = {"lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"}
    loaded = model.load_state_dict(tensors, strict=False)
    assert {name.removesuffix(".weight") for name in loaded.missing_keys} <= tied, loaded
    return model


# -- training -------------------------------------------------------------------------------------


def training(case: Case, compiled: bool) -> dict[str, Prepare]:
    rows = case.size.tokens // LENGTH
    # source, target_in, target_out
    ids = torch.randint(3, case.size.labels, (3, rows, LENGTH), device=case.device)
    batch = ids.unbind()

    def theirs(model: nn.Module, source: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        mask = (source != PAD).long()
        logits = model(
            input_ids=source, attention_mask=mask, decoder_input_ids=target_in, use_cache=False
        ).logits
        targets = target_out.flatten()
        return F.cross_entropy(logits.flatten(0, 1), targets, label_smoothing=SMOOTHING)

    def ours(model: nn.Module, *batch: Tensor) -> Tensor:
        return model(*batch, label_smoothing=SMOOTHING, check=False)

    def prepare(name: str, suffix: str) -> Step:
        """Gradients launched kernel by kernel or replayed, then Adam."""
        base = name == BASE
        model = marian(case) if base else translator(case, name.removeprefix("drill "))
        run = torch.compile(model.train()) if suffix == COMPILED else model.train()

        def loss(*batch: Tensor) -> Tensor:
            with case.autocast():
                return (theirs if base else ours)(run, *batch)

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
        captured = CapturedGradients(model, loss)

        def step() -> list[Tensor]:
            value = captured(*batch) if suffix == GRAPH else loss(*batch)
            if suffix != GRAPH:
                value.backward()
            optimizer.step()
            optimizer.zero_grad()
            return [value.detach()]

        return step

    suffixes = [""]
    suffixes += [GRAPH] if case.device.type == "cuda" else []
    suffixes += [COMPILED] if compiled else []
    return {
        name + suffix: partial(prepare, name, suffix)
        for name in (BASE, *(f"drill {layer}" for layer in TIMED_LAYERS))
        for suffix in suffixes
    }


# -- search ---------------------------------------------------------------------------------------


def search(case: Case, sentences: int, stack: ExitStack) -> dict[str, Prepare]:
    ids = torch.randint(3, case.size.labels, (sentences, LENGTH), device=case.device)
    ids[:, -1] = END

    def theirs() -> Step:
        model = marian(case).to(case.param_dtype).eval()
        seen = torch.ones_like(ids)

        def step() -> list[Tensor]:
            with torch.no_grad():
                options = {"num_beams": BEAM, "max_length": LENGTH + 1, "do_sample": False}
                written = model.generate(input_ids=ids, attention_mask=seen, **options)
            assert written.shape == (sentences, LENGTH + 1)  # <begin> is counted there
            return [written]

        return step

    def ours(layer: str, graph: bool | None = None) -> Step:
        model = translator(case, layer).to(case.param_dtype).eval()
        head = stack.enter_context(cached_head(model))
        search = Search(
            beam_size=BEAM,
            max_ratio=0.0,
            max_extra=LENGTH,
            batch_tokens=ids.numel(),
            graph=graph,
        )
        sources = ids.tolist()

        def step() -> list[Tensor]:
            found = beam_search(model, sources, search, head=head)
            assert all(len(best.ids) == LENGTH - 1 for best, *_ in found)
            return []

        return step

    models = {BASE: theirs, **{f"drill {layer}": partial(ours, layer) for layer in TIMED_LAYERS}}
    if case.device.type == "cuda":
        models["drill tied, graph=False"] = partial(ours, "tied", graph=False)
    return models


# -------------------------------------------------------------------------------------------------


def main() -> None:
    options = parser(__doc__, NAMES)
    options.add_argument("--sentences", type=int, nargs="+", default=[64], help="searched at once")
    options.add_argument("--compile", action="store_true", help="also with torch.compile: minutes")
    options.add_argument("--task", nargs="+", choices=TASKS, default=TASKS, help="default: both")
    add_layer_options(options)
    args = options.parse_args()
    for each in args.options:
        given = apply_overrides({}, [f"layer.{change}" for change in each.split(",")])["layer"]
        TIMED_LAYERS[f"deep-residual 2, {each}"] = partial(DeepResidual, depth=2, **given)
    rounds = (5, 100)
    every = (BASE, "drill")  # not captured as they are: an optimizer counts its steps on the host
    report = Report("translation", args)
    for case in cases(args, NAMES, on_cuda=["autocast"]):
        if "training" in args.task:
            models = training(case, args.compile)
            results = measure(models, args, rounds=rounds, no_graph=every)
            add_rate(results, "target_tokens_per_second", case.size.tokens // LENGTH * LENGTH)
            report.add(case, results, task="training", length=LENGTH)
        if "search" not in args.task:
            continue
        for sentences in [4] if args.quick else args.sentences:
            size = case.size._replace(tokens=sentences * LENGTH)
            dtype = "bfloat16" if case.dtype == "autocast" else case.dtype
            searched = Case(case.name, size, dtype, case.device)
            with ExitStack() as stack:
                models = search(searched, sentences, stack)
                results = measure(models, args, rounds=rounds, no_graph=every)
            add_rate(results, "sentences_per_second", sentences)
            report.add(searched, results, task="search", beam=BEAM, length=LENGTH)
    report.finish(
        "CUDA graph: forward and backward are replayed; Adam is launched on both sides",
        f"search: beam {BEAM}, {LENGTH} tokens a sentence, the same weights on both sides",
    )


if __name__ == "__main__":
    main()
