"""`drill recipes`, `drill settings` and `drill layers`: what can be trained, changed and chosen."""

import inspect
import json
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer

from drill.cli.options import SetOption
from drill.recipes.reader import Measured, describe, layer_name, measured, read, recipe_names

if TYPE_CHECKING:
    from drill.training.settings import Settings

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")]

# -- drill recipes --------------------------------------------------------------------------------

WIDTH = 100
CPU, GPU = "cpu", "cuda"
CORPUS_DEVICES: Mapping[str, str] = {
    "bible": CPU,
    "numbers": CPU,
    "elife": GPU,
    "ptb": GPU,
    "wikitext-2": GPU,
    "multi30k": GPU,
    "europarl": GPU,
    "wmt14": GPU,
}
"""What the recipes of a corpus need; those for any machine come first."""


@dataclass(frozen=True)
class Listed:
    """A recipe in the list; ``max_steps`` or ``max_minutes`` end it before its epochs."""

    name: str
    about: str
    task: str
    corpus: str
    layer: str
    device: str
    epochs: int
    max_steps: int | None
    max_minutes: float | None
    measured: Measured | None

    @property
    def length(self) -> str:
        if self.max_minutes is not None:
            return f"{self.max_minutes:g} minutes"
        if self.max_steps is not None:
            return f"{self.max_steps:,} steps"
        return f"{self.epochs:,} epoch{'' if self.epochs == 1 else 's'}"


def recipes(as_json: JsonOption = False) -> None:
    """List the recipes that come with the package.

    By corpus: name, length and output layer. --json adds training times where they were measured.
    """
    found = [_listed(name) for name in recipe_names()]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    widths = [max(len(getattr(each, key)) for each in found) for key in ("name", "length")]
    for corpus, device in CORPUS_DEVICES.items():
        of_corpus = [each for each in found if each.corpus == corpus]
        task = "translators" if of_corpus[0].task == "translation" else "language models"
        typer.echo(f"{corpus}: {task}, {'any CPU' if device == CPU else 'NVIDIA GPU'}")
        for each in of_corpus:
            start = f"  {each.name:{widths[0]}}  {each.length:{widths[1]}}  "
            typer.echo(textwrap.fill(start + each.about, WIDTH, subsequent_indent=" " * len(start)))
        typer.echo()
    typer.echo("Train one with `drill train RECIPE`; `drill settings RECIPE` lists its settings.")


def _listed(name: str) -> Listed:
    tables = read(name)  # as written: reading the defaults would import torch
    corpus, training = tables["data"]["corpus"], tables["training"]
    layer = layer_name(tables["layer"])
    assert layer is not None
    return Listed(
        name,
        describe(name),
        tables.get("task", "language-model"),
        corpus,
        layer,
        CORPUS_DEVICES[corpus],
        training["epochs"],
        training.get("max_steps"),
        training.get("max_minutes"),
        measured().get(name),
    )


# -- drill settings -------------------------------------------------------------------------------


class Setting(NamedTuple):
    key: str
    value: Any
    default: Any
    type: str
    description: str


def settings(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe name, a .toml file or a run folder.")
    ],
    change: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the settings of a recipe, which --set changes.

    Each with its value in the recipe, default, type and meaning. Which settings a layer, an encoder
    or an optimizer has depends on its name: add --set layer.name=mixture to see those of a mixture.
    """
    from drill.cli.display import console
    from drill.training.settings import recipe as read_recipe

    name = os.path.join(recipe, "recipe.toml") if os.path.isdir(recipe) else recipe
    rows = list(_rows(read_recipe(name, change or ())))
    if as_json:
        typer.echo(json.dumps([row._asdict() for row in rows], indent=2))
        return
    cells = [Setting(r.key, _toml(r.value), _toml(r.default), *r[3:]) for r in rows]
    cells.insert(0, Setting(*Setting._fields)._replace(key="setting"))
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    widths.append(26)  # a few types are longer
    for row in cells:
        padded = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))
        console().print("  ".join([*padded, row.description]), soft_wrap=True)


def _rows(settings: "Settings") -> Iterator[Setting]:
    from drill.training.schema import settable_arguments
    from drill.training.settings import ENCODER_DEFAULTS

    special = ENCODER_DEFAULTS.get(settings.encoder["name"], {})
    for table, (call, types) in _signatures(settings).items():
        values: Any = settings.tables()
        for part in table.split("."):
            values = values[part]
        arguments = settable_arguments(call)
        for key, value in values.items():
            if isinstance(value, dict):  # the wrapped layer, a table of its own
                continue
            if key in arguments:
                default = arguments[key].default
                default = "required" if default is inspect.Parameter.empty else default
                default = special.get(table, {}).get(key, default)
                kind = type_name(arguments[key].annotation)
            else:
                default, kind = "", types[key]
            described = DESCRIPTIONS.get(f"{table.split('.')[0]}.{key}", "")
            yield Setting(f"{table}.{key}", value, default, kind, described)


def type_name(annotation: Any) -> str:
    """``int``, ``float | none``, ``list[int]``, ``tail | ema``."""
    from drill.training.schema import alternatives

    names: list[str] = []
    for each in alternatives(annotation):
        if get_origin(each) is Literal:
            names += map(str, get_args(each))
        elif get_origin(each) is not None:
            names.append("list[int]")
        else:
            names.append("none" if each is type(None) else each.__name__)
    return " | ".join(names)


def _signatures(settings: "Settings") -> dict[str, tuple[Callable[..., Any], dict[str, str]]]:
    """The callable whose arguments a table has, and the types of its other keys."""
    from drill.data import Filters, Subwords, read_corpus, read_parallel_corpus
    from drill.layers import LAYERS
    from drill.models import ENCODERS
    from drill.models.transformer.transformer import Transformer
    from drill.training.optim import OPTIMIZERS
    from drill.training.options import LanguageModelOptions, TranslationOptions
    from drill.training.settings import INNER, TRANSLATION

    def named(choices: Any) -> dict[str, str]:
        return {"name": " | ".join(choices), "embedding_dim": "int", "shared": "bool"}

    layers = {"layer": (LAYERS[settings.layer["name"]], named(LAYERS))}
    if INNER in settings.layer:
        layers[f"layer.{INNER}"] = (LAYERS[settings.layer[INNER]["name"]], named(LAYERS))
    optimizer = (OPTIMIZERS[settings.optimizer["name"]], named(OPTIMIZERS))
    if settings.task == TRANSLATION:
        return {
            "data": (read_parallel_corpus, {}),
            "filters": (Filters, {}),
            "subwords": (Subwords.train, {}),
            "encoder": (Transformer, named(["transformer"])),
            **layers,
            "optimizer": optimizer,
            "training": (TranslationOptions, {}),
        }
    return {
        "data": (read_corpus, {}),
        "encoder": (ENCODERS[settings.encoder["name"]], named(ENCODERS)),
        **layers,
        "optimizer": optimizer,
        "training": (LanguageModelOptions, {}),
    }


def _toml(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


DESCRIPTIONS = {
    "layer.zero_start": "start as weight tying: the last label map is zero",
    "layer.norm": "none or rms: divide the input of each label map by its root mean square",
    "layer.block": "map, or mlp: a second matrix after the activation of each label map",
    "layer.gate": "none, scalar or label: a learned factor of the last label map, from zero",
    "layer.center": "subtract the mean label before labels are rounded to bfloat16",
    "optimizer.momentum": "momentum of the matrices' gradients (muon)",
    "training.log_every": "steps between rows of training loss",
    "training.untie_at": "fraction of the run after which the layer becomes a free matrix",
    "data.corpus": "a name (see `drill data`), a folder or a file",
    "data.min_count": "rarer words become <unk>",
    "data.max_vocab_size": "largest vocabulary; rarer words become <unk>",
    "data.tokenizer": "words, the number of subwords to learn, or a tokenizer.json",
    "data.valid": "fraction of a single file used for validation",
    "data.test": "fraction of a single file used for the test",
    "data.source": "source language",
    "data.target": "target language",
    "data.pairs": "number of training pairs to use",
    "filters.minimum": "shortest sentence, in subwords",
    "filters.maximum": "longest sentence, in subwords",
    "filters.ratio": "largest ratio of the two lengths of a pair",
    "filters.deduplicate": "keep the first of equal pairs only",
    "subwords.size": "largest number of subwords",
    "subwords.min_count": "rarer pairs of subwords are not merged",
    "subwords.single_digits": "split numbers into digits",
    "encoder.name": "which encoder",
    "encoder.embedding_dim": "size of word embeddings",
    "encoder.model_type": "causal model of transformers, such as llama, qwen3, gpt2",
    "encoder.kv_heads": "heads of keys and values; as many as heads by default",
    "encoder.intermediate_size": "inner size of the feed-forward networks; 8/3 of embedding_dim",
    "encoder.context_length": "longest window",
    "encoder.init_std": "standard deviation of initial weights",
    "encoder.shared": "one embedding matrix for source and target",
    "encoder.hidden_size": "hidden size of all LSTM layers but the last",
    "encoder.layers": "number of layers (Transformer: of the encoder, and of the decoder)",
    "encoder.output_size": "size of the last LSTM layer; embedding_dim by default",
    "encoder.dropout_embedding": "probability of dropping a word type from the input embedding",
    "encoder.dropout_input": "variational dropout on word embeddings",
    "encoder.dropout_hidden": "variational dropout between LSTM layers",
    "encoder.dropout_output": "variational dropout on the last layer's output",
    "encoder.weight_drop": "DropConnect on the hidden-to-hidden matrices",
    "encoder.impl": "which kernels compute it; auto picks by device",
    "encoder.init_range": "embeddings start uniform in +-init_range; none: PyTorch's default",
    "encoder.heads": "attention heads",
    "encoder.feedforward": "inner size of feed-forward blocks",
    "encoder.dropout": "dropout probability",
    "encoder.attention_dropout": "dropout on attention weights; as dropout by default",
    "encoder.norm": "layer norm before (pre) or after (post) each block",
    "layer.name": "which output layer",
    "layer.hidden_size": "size of the hidden states; the encoder's output size by default",
    "layer.joint_size": "size of the joint space; embedding_dim by default",
    "layer.depth": "number of label maps",
    "layer.activation": "sigmoid, relu, tanh, gelu, silu or none",
    "layer.dropout": "dropout probability of label maps (mixture: of the experts' contexts)",
    "layer.locked": "variational dropout: one mask for all labels (mixture: for all time steps)",
    "layer.dropout_at": "apply dropout to the input or output of each map",
    "layer.residual": "add the embedding after each map",
    "layer.residual_between": "also add the output of the map before",
    "layer.init_range": "weights start uniform in +-init_range",
    "layer.map_bias": "label maps have a bias",
    "layer.bias": "the softmax has a bias",
    "layer.impl": "which kernels encode the labels; auto picks by device",
    "layer.experts": "number of softmaxes",
    "layer.samples": "number of sampled labels per step",
    "layer.proposal": "distribution of the sampled labels",
    "layer.cutoffs": "frequency ranks at which clusters start",
    "layer.reduction_factor": "each cluster is this many times narrower than the one before",
    "optimizer.name": "which optimizer",
    "optimizer.lr": "learning rate, at its highest",
    "optimizer.weight_decay": "weight decay",
    "optimizer.max_grad_norm": "clip the norm of the gradients to this",
    "optimizer.patience": "epochs without improvement before averaging starts",
    "optimizer.schedule": "learning rate schedule",
    "optimizer.warmup": "fraction of the run with linear warm-up",
    "optimizer.warmup_steps": "warm-up steps of inverse-sqrt",
    "optimizer.hold": "fraction of the run at lr before it decays",
    "optimizer.final": "last learning rate, as a fraction of lr",
    "optimizer.beta1": "decay of the mean of gradients",
    "optimizer.beta2": "decay of the mean of squared gradients",
    "optimizer.eps": "added to the denominator",
    "optimizer.average_from": "fraction of the run after which weights are averaged",
    "optimizer.average": "mean of all weights since then, or exponential moving average",
    "optimizer.ema_decay": "decay of the exponential moving average, per step",
    "training.epochs": "number of epochs",
    "training.max_minutes": "end training after this many minutes",
    "training.max_steps": "end training after this many steps",
    "training.seed": "random seed",
    "training.precision": "of matrix products; bfloat16 uses autocast",
    "training.cuda_graphs": "replay steps as CUDA graphs where possible",
    "training.patience": "validations without improvement before training stops",
    "training.validate_first": "validate before the first step",
    "training.checkpoint_seconds": "seconds between checkpoints",
    "training.batch_size": "sequences processed in parallel, over all processes",
    "training.bptt": "mean length of backpropagation through time, in tokens",
    "training.length_seed": "seed of the random segment lengths; seed by default",
    "training.length_cap": "longest segment",
    "training.partial_shuffle": "rotate each sequence by a random offset every epoch",
    "training.ar_weight": "weight of activation regularization, mean(output^2)",
    "training.tar_weight": "weight of temporal activation regularization",
    "training.adversarial": "adversarial softmax: lower target logits by this * |w_y| * |h|",
    "training.state_reset": "probability of starting a segment from the initial state",
    "training.micro_batch": "sequences per forward pass, gradients accumulated; none: all",
    "training.valid_batch_size": "batch size of validation",
    "training.test_batch_size": "batch size of the test",
    "training.max_tokens": "subwords per batch on either side, with padding",
    "training.gradient_accumulation_steps": "batches per step, over all processes",
    "training.label_smoothing": "label smoothing of the training loss",
    "training.pad_to_multiple_of": "pad lengths to multiples of this",
    "training.compile": "compile the Transformer with torch.compile",
    "training.validate_every": "steps between validations; none: once an epoch",
    "training.bleu_every": "compute BLEU at every n-th validation",
    "training.average_checkpoints": "average the weights of so many last validations",
    "training.beam": "beam width",
    "training.length_penalty": "exponent of the length that scores are divided by",
}
"""One line per setting; settings of a wrapped layer (``layer.inner``) are those of ``layer``."""


# -- drill layers ---------------------------------------------------------------------------------


def layers(
    vocabulary: Annotated[int, typer.Option(min=2, max=10**8, help="V, vocabulary size.")] = 10_000,
    width: Annotated[int, typer.Option(min=1, max=10**5, help="d, embedding size.")] = 400,
    hidden: Annotated[
        int | None, typer.Option(min=1, max=10**5, help="d_h, hidden size; d by default.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, max=10**6, help="N, tokens per step.")] = 1_400,
    depth: Annotated[int, typer.Option(min=0, max=1000, help="Depth of deep-residual.")] = 4,
    experts: Annotated[int, typer.Option(min=1, max=1000, help="Experts of mixture.")] = 15,
    joint: Annotated[
        int | None, typer.Option(min=1, max=10**5, help="Joint size of dual; d by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the output layers and their cost.

    Each computes softmax(g_out(E) g_in(h) + b) of the embedding E and the hidden state h. The costs
    are parameters, and FLOPs of a training step and of inference.
    """
    from drill.layers.cost import FORMULAE, cost, example_layers

    hidden, joint = hidden or width, joint or width
    sizes = {"vocabulary": vocabulary, "width": width, "hidden": hidden, "tokens": tokens}
    sizes |= {"depth": depth, "experts": experts, "joint": joint}
    built = example_layers(vocabulary, width, hidden, depth=depth, experts=experts, joint=joint)
    costs = {name: cost(layer, tokens) for name, layer in built.items()}
    rows = [
        {
            "layer": name,
            "g_out": FORMULAE[name][0],
            "g_in": FORMULAE[name][1],
            "hidden": built[name].hidden_size,
            **asdict(costs[name]),
            "train_over_tied": costs[name].train_flops / costs["tied"].train_flops,
        }
        for name in built
    ]
    if as_json:
        typer.echo(json.dumps({**sizes, "layers": rows}, indent=2))
    else:
        _print_costs(sizes, rows)


def _print_costs(sizes: dict[str, int], rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in ["layer", "g_out(E)", "g_in(h)"]:
        table.add_column(heading, no_wrap=True)
    for heading in ["own\nparameters", "train\nGFLOP", "x\ntied", "infer\nGFLOP", "folds"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["layer"],
            row["g_out"],
            row["g_in"],
            f"{row['parameters']:,}",
            _giga(row["train_flops"]),
            _ratio(row["train_over_tied"]),
            _giga(row["inference_flops"]),
            "yes" if row["folded"] else "no",
        )
    console = Console(highlight=False, width=200)  # numbers must not be cut
    V, d, h, N = (f"{sizes[name]:,}" for name in ["vocabulary", "width", "hidden", "tokens"])
    console.print(f"V = {V} labels, d = {d}, d_h = {h}, N = {N} tokens a step\n")
    console.print(table)
    console.print("\nown parameters: without the embedding E, which belongs to the encoder")
    console.print("train: FLOPs of one training step; x tied: relative to the tied layer")
    console.print("infer: FLOPs of the logits of N tokens, with the labels encoded beforehand")
    console.print("folds: after training, fold() replaces the layer by one nn.Linear on g_in(h)")
    console.print("mixture, sampled and adaptive are shown with tied as their inner layer")
    if narrow := [row["layer"] for row in rows if row["hidden"] != sizes["hidden"]]:
        console.print(f"shown for d_h = d = {d}, which they require: {', '.join(narrow)}")


def _ratio(times: float) -> str:
    return f"{times:,.2f}" if times >= 0.01 else f"{times:.1g}"  # not 0.00


def _giga(flops: int) -> str:
    return f"{flops / 1e9:,.1f}" if flops >= 10**9 else f"{flops / 1e9:.2g}"
