"""A trained translator as a folder that the package ``transformers`` loads with no code of ours.

    config.json, generation_config.json   sizes; how it decodes
    model.safetensors                     weights, the output layer folded into one matrix
    tokenizer.json, tokenizer_config.json the subwords

A "post" Transformer becomes a MarianMTModel. A "pre" one becomes a PegasusForConditionalGeneration,
which is the same network with the norms before: Marian has none there. Writing needs neither.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor, nn

from drill.data.parallel.subwords import BEGIN, END, PAD, Subwords
from drill.errors import DataError, NotExportable
from drill.files import atomic_write
from drill.layers import MatrixLayer, NotFoldable
from drill.layers.base import OutputLayer
from drill.layers.checks import positive
from drill.layers.sampled import foldable
from drill.models.transformer.attention import CrossAttention, SelfAttention
from drill.models.transformer.blocks import FeedForward, Residual
from drill.models.transformer.inputs import sinusoids
from drill.models.transformer.transformer import Transformer

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
WEIGHTS = "model.safetensors"
FILES = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS)

MARK = {"exported_by": "drill"}
"""In ``config.json``: other programs save their models under the same names of files."""

THEIRS = "transformers_version"  # in every config.json that the library has saved


class Translates(Protocol):
    """A Transformer under an output layer, as ``drill.models.translator.Translator`` is."""

    @property
    def transformer(self) -> Transformer: ...

    @property
    def layer(self) -> OutputLayer: ...


@torch.no_grad()
def export_marian(
    model: Translates,
    subwords: Subwords,
    folder: Path | str,
    *,
    positions: int = 1024,
    beam: int = 4,
    length_penalty: float = 0.6,
) -> Path:
    """Write ``model`` and ``subwords`` into ``folder``, which gives the same probabilities there.

        export_marian(run.model, run.subwords, "marian")
        # elsewhere, without drill:
        model = AutoModelForSeq2SeqLM.from_pretrained("marian")
        tokenizer = PreTrainedTokenizerFast.from_pretrained("marian")

    positions       longest sentence, in subwords, that the copy reads or writes; it keeps a table,
                    where ours has no such bound
    beam,           what the copy's ``generate`` takes by default; its penalty is
    length_penalty  length^penalty, ours ((5 + length) / 6)^penalty

    Greedy translations are the same too, those of a beam where ``length_penalty`` is 0 on both
    sides. The folder is new, empty or an older export, which is replaced; what the library saved
    there is not.

    The output layer is folded: a deep residual one becomes ``lm_head`` and ``final_logits_bias``.
    NotFoldable for mixtures and adaptive softmaxes, NotExportable for a layer that transforms its
    contexts (dual) and for a "pre" model with two embeddings.
    """
    folder = Path(folder)
    _check_subwords(model.transformer, subwords)
    _check_folder(folder)
    config, tensors = marian_weights(model, positions)
    # Clones: the file format allows no two names for one piece of memory.
    found = {name: each.cpu().contiguous().clone() for name, each in tensors.items()}
    try:
        # Weights go first and come last: without them nobody loads what was written in part.
        if folder.is_dir():
            (folder / WEIGHTS).unlink(missing_ok=True)
        atomic_write(folder / CONFIG, _json(config))
        atomic_write(folder / GENERATION, _json(_generation(positions, beam, length_penalty)))
        atomic_write(folder / TOKENIZER, _tokenizer(subwords))
        atomic_write(folder / TOKENIZER_CONFIG, _json(_tokenizer_config(positions)))
        atomic_write(folder / WEIGHTS, safetensors.torch.save(found, {"format": "pt"}))
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}); choose another folder"
        ) from None
    return folder


@torch.no_grad()
def marian_weights(
    model: Translates, positions: int = 1024
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The library's settings and its tensors by name, sharing memory with the model's."""
    positive("export_marian", "positions", positions)
    transformer = model.transformer
    head = _folded(model.layer)
    source, target = transformer.source_embedding.weight, transformer.target_embedding.weight
    shared = transformer.source_embedding is transformer.target_embedding
    if transformer.norm == "pre" and not shared:
        raise NotExportable(
            'export_marian: a Transformer with norm="pre" becomes a Pegasus model, which has one '
            "embedding for both languages; train with one (encoder.shared=true), or with norms "
            "after (encoder.norm=post), which makes a Marian model"
        )
    tied = torch.equal(head.weight, target)
    config = _config(transformer, positions, tied)
    if transformer.norm == "post":
        config |= {"decoder_vocab_size": len(target), "share_encoder_decoder_embeddings": shared}

    tensors = dict(_blocks(transformer))
    if shared:
        tensors["model.shared.weight"] = source
    if not shared or not tied:  # untied, the library looks for each of them by its own name
        tensors["model.encoder.embed_tokens.weight"] = source
        tensors["model.decoder.embed_tokens.weight"] = target
    if not tied:
        tensors["lm_head.weight"] = head.weight
    table = sinusoids(0, positions, transformer.output_size, source)
    for side in ("encoder", "decoder"):
        tensors[f"model.{side}.embed_positions.weight"] = table
    bias = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
    tensors["final_logits_bias"] = bias[None]
    return config, {name: each.detach() for name, each in tensors.items()}


# -- what does not fit ----------------------------------------------------------------------------


def _folded(layer: OutputLayer) -> nn.Linear:
    matrix = foldable(layer)
    if matrix is None:
        raise NotFoldable(
            f"export_marian: a {type(layer).__name__} is no single matrix, and Marian's output "
            "layer is one; train the translator with a layer that folds (drill layers says which)"
        )
    if type(matrix).context is not MatrixLayer.context:
        raise NotExportable(
            f"export_marian: a {type(matrix).__name__} transforms the hidden states before its "
            "labels see them, and Marian has no place for that; take a deep-residual, bilinear, "
            "tied or full layer"
        )
    return matrix.fold()


def _check_folder(folder: Path) -> None:
    """An export among other files would be taken for a part of them, as in the folder of a run;
    and the files may be another model."""
    if not folder.is_dir():
        return
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if others := [name for name in found if name not in FILES]:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise DataError(
            f"{folder}: holds what is no export ({', '.join(others[:3])}{more}); choose a new or "
            "an empty folder"
        )
    if found and not _is_ours(folder / CONFIG):
        raise DataError(
            f"{folder}: holds a model that drill has not exported ({', '.join(found[:3])}); choose "
            "a new or an empty folder"
        )


def _is_ours(config: Path) -> bool:
    """Whether an export wrote it; the library hands the mark on when it saves a loaded export, and
    adds its own version."""
    try:
        found = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.items() >= MARK.items() and THEIRS not in found


def _check_subwords(transformer: Transformer, subwords: Subwords) -> None:
    sides = {"source": transformer.source_embedding, "target": transformer.target_embedding}
    for name, embedding in sides.items():
        if embedding.num_embeddings != len(subwords):
            raise DataError(
                f"export_marian: the {name} embedding has {embedding.num_embeddings} rows and "
                f"there are {len(subwords)} subwords; pass those the model was trained with"
            )
    if transformer.pad != PAD:
        raise DataError(
            f"export_marian: the Transformer pads with {transformer.pad} and subwords with {PAD}; "
            "pass those the model was trained with"
        )


# -- weights --------------------------------------------------------------------------------------

Named = Iterator[tuple[str, Tensor]]


def _blocks(transformer: Transformer) -> Named:
    for i, block in enumerate(transformer.encoder):
        name = f"model.encoder.layers.{i}"
        yield from _self_attention(f"{name}.self_attn", block.attention)
        yield from _norm(f"{name}.self_attn_layer_norm", block.around_attention)
        yield from _network(name, block.feedforward)
        yield from _norm(f"{name}.final_layer_norm", block.around_feedforward)
    for i, decoder in enumerate(transformer.decoder):
        name = f"model.decoder.layers.{i}"
        yield from _self_attention(f"{name}.self_attn", decoder.attention)
        yield from _norm(f"{name}.self_attn_layer_norm", decoder.around_attention)
        yield from _cross_attention(f"{name}.encoder_attn", decoder.source_attention)
        yield from _norm(f"{name}.encoder_attn_layer_norm", decoder.around_source_attention)
        yield from _network(name, decoder.feedforward)
        yield from _norm(f"{name}.final_layer_norm", decoder.around_feedforward)
    for side, norm in (
        ("encoder", transformer.encoder_norm),
        ("decoder", transformer.decoder_norm),
    ):
        if isinstance(norm, nn.LayerNorm):  # only where no block ends in one
            yield from _affine(f"model.{side}.layer_norm", norm.weight, norm.bias)


def _self_attention(name: str, attention: SelfAttention) -> Named:
    joined = attention.query_key_value
    parts = zip("qkv", joined.weight.chunk(3), joined.bias.chunk(3), strict=True)
    for letter, weight, bias in parts:
        yield from _affine(f"{name}.{letter}_proj", weight, bias)
    yield from _affine(f"{name}.out_proj", attention.output.weight, attention.output.bias)


def _cross_attention(name: str, attention: CrossAttention) -> Named:
    yield from _affine(f"{name}.q_proj", attention.query.weight, attention.query.bias)
    joined = attention.key_value
    for letter, weight, bias in zip(
        "kv", joined.weight.chunk(2), joined.bias.chunk(2), strict=True
    ):
        yield from _affine(f"{name}.{letter}_proj", weight, bias)
    yield from _affine(f"{name}.out_proj", attention.output.weight, attention.output.bias)


def _network(name: str, network: FeedForward) -> Named:
    yield from _affine(f"{name}.fc1", network.inner.weight, network.inner.bias)
    yield from _affine(f"{name}.fc2", network.output.weight, network.output.bias)


def _norm(name: str, residual: Residual) -> Named:
    yield from _affine(name, residual.norm.weight, residual.norm.bias)


def _affine(name: str, weight: Tensor, bias: Tensor) -> Named:
    yield f"{name}.weight", weight
    yield f"{name}.bias", bias


# -- settings -------------------------------------------------------------------------------------


def _config(transformer: Transformer, positions: int, tied: bool) -> dict[str, Any]:
    block = transformer.encoder[0]
    pegasus = transformer.norm == "pre"
    sizes: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"] = len(transformer.encoder)
        sizes[f"{side}_attention_heads"] = block.attention.heads
        sizes[f"{side}_ffn_dim"] = block.feedforward.inner.out_features
    return {
        "model_type": "pegasus" if pegasus else "marian",
        "architectures": ["PegasusForConditionalGeneration" if pegasus else "MarianMTModel"],
        "vocab_size": transformer.source_embedding.num_embeddings,
        "d_model": transformer.output_size,
        **sizes,
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": positions,
        "dropout": transformer.dropout,
        "activation_dropout": transformer.dropout,
        "attention_dropout": block.attention.dropout,
        "tie_word_embeddings": tied,
        "is_encoder_decoder": True,
        **MARK,
        "dtype": str(transformer.source_embedding.weight.dtype).removeprefix("torch."),
        **_ids(),
    }


def _ids() -> dict[str, int]:
    return {
        "pad_token_id": PAD,
        "bos_token_id": BEGIN,
        "decoder_start_token_id": BEGIN,
        "eos_token_id": END,
        "forced_eos_token_id": END,
    }


def _generation(positions: int, beam: int, length_penalty: float) -> dict[str, Any]:
    """The search; its end can be no source + 50, as ours is: the library has one for all."""
    search = {"num_beams": beam, "length_penalty": length_penalty, "max_length": positions}
    return {**_ids(), "suppress_tokens": [PAD, BEGIN], **search}


# -- subwords -------------------------------------------------------------------------------------


def _tokenizer(subwords: Subwords) -> bytes:
    """The subwords' own JSON, and every text ends in <end>, as sources do in training."""
    found = json.loads(subwords.description())
    end = subwords.piece(END)
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}]
    found["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single[:1], {"Sequence": {"id": "B", "type_id": 0}}, *single[1:]],
        "special_tokens": {end: {"id": end, "ids": [END], "tokens": [end]}},
    }
    return _json(found)


def _tokenizer_config(positions: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<begin>",
        "eos_token": "<end>",
        "model_max_length": positions,
        "padding_side": "right",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "<end>" inside a text stays text
    }


# -- files ----------------------------------------------------------------------------------------


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
