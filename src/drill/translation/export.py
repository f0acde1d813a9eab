"""A trained translator as a folder that the package ``transformers`` loads with no code of ours.

    config.json, generation_config.json   sizes; how it decodes
    model.safetensors                     weights, the output layer folded into one matrix
    tokenizer.json, tokenizer_config.json the subwords

A Transformer with norm="pre", as all recipes have, becomes a PegasusForConditionalGeneration, one
with norm="post" a MarianMTModel: the same network, but the norms come after. Writing needs neither.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from drill.data.subwords import BEGIN, END, PAD, Subwords
from drill.errors import DataError, NotExportable
from drill.files import atomic_write
from drill.layers import MatrixLayer, NotFoldable
from drill.layers.base import OutputLayer
from drill.layers.checks import check_integer
from drill.layers.wrappers.sampled import foldable
from drill.models.transformer.blocks import DecoderBlock, EncoderBlock
from drill.models.transformer.transformer import Transformer, sinusoids
from drill.models.translator import Translator
from drill.training.options import DEFAULT_BEAM_SIZE, DEFAULT_LENGTH_PENALTY

IDS = {
    "pad_token_id": PAD,
    "bos_token_id": BEGIN,
    "decoder_start_token_id": BEGIN,
    "eos_token_id": END,
    "forced_eos_token_id": END,
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": "<pad>",
    "bos_token": "<begin>",
    "eos_token": "<end>",
    "padding_side": "right",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": True,  # "<end>" inside a text stays text
}


@torch.no_grad()
def export_translator(
    model: Translator,
    subwords: Subwords,
    folder: Path | str,
    *,
    max_length: int = 1024,
    beam_size: int = DEFAULT_BEAM_SIZE,
    length_penalty: float = DEFAULT_LENGTH_PENALTY,
) -> Path:
    """Write a translator for transformers: Pegasus if its norms are "pre", Marian if "post".

        export_translator(run.model, run.subwords, "exported")
        # elsewhere, without drill:
        model = AutoModelForSeq2SeqLM.from_pretrained("exported")
        tokenizer = PreTrainedTokenizerFast.from_pretrained("exported")

    Probabilities and greedy translations are the same there, those of a beam too where
    ``length_penalty`` is 0 on both sides. The output layer is folded: a deep residual one becomes
    ``lm_head`` and ``final_logits_bias``. NotFoldable for mixtures and adaptive softmaxes,
    NotExportable for a layer that transforms its contexts (dual) and for a "pre" model with two
    embeddings.

    Args:
        model: the translator.
        subwords: the ones it was trained with.
        folder: new or empty.
        max_length: the longest sentence, in subwords, that the copy reads or writes.
        beam_size: the default of the copy's ``generate``.
        length_penalty: its default too; there the penalty is length^penalty, here
            ((5 + length) / 6)^penalty.

    Returns:
        The folder.
    """
    folder = Path(folder)
    for side in (model.transformer.source_embedding, model.transformer.target_embedding):
        if side.num_embeddings != len(subwords):
            raise DataError(
                f"export_translator: the model has {side.num_embeddings} embeddings, but there "
                f"are {len(subwords)} subwords; pass those the model was trained with"
            )
    if folder.is_dir() and any(path.name[:1] != "." for path in folder.iterdir()):
        raise DataError(f"{folder}: is not empty; choose a new or an empty folder")
    config, tensors = exported_weights(model, max_length)
    # Clones: the file format allows no two names for one piece of memory.
    weights = {name: t.cpu().contiguous().clone() for name, t in tensors.items()}
    # The end of a search cannot be source + 50 there: the library has one for all sentences.
    search = {"num_beams": beam_size, "length_penalty": length_penalty, "max_length": max_length}
    files = {
        "config.json": _json(config),
        "generation_config.json": _json({**IDS, "suppress_tokens": [PAD, BEGIN], **search}),
        "tokenizer.json": _tokenizer(subwords),
        "tokenizer_config.json": _json({**TOKENIZER, "model_max_length": max_length}),
        "model.safetensors": safetensors.torch.save(weights, {"format": "pt"}),
    }
    for name, content in files.items():  # weights last: nobody loads what is there in part
        atomic_write(folder / name, content)
    return folder


@torch.no_grad()
def exported_weights(
    model: Translator, max_length: int = 1024
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What ``export_translator`` writes, without writing files.

    Args:
        model: the translator.
        max_length: the longest sentence, in subwords.

    Returns:
        The library's settings, and its tensors by name, sharing memory with the model's.
    """
    check_integer("export_translator", "max_length", max_length)
    transformer = model.transformer
    head = _folded(model.layer)
    source, target = transformer.source_embedding.weight, transformer.target_embedding.weight
    shared = transformer.source_embedding is transformer.target_embedding
    if transformer.norm == "pre" and not shared:
        raise NotExportable(
            'export_translator: a model with norm="pre" must have one embedding for both '
            "languages; train with encoder.shared=true, or with encoder.norm=post"
        )
    tied = torch.equal(head.weight, target)
    config = _config(transformer, max_length, tied)
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
    table = sinusoids(0, max_length, transformer.output_size, source)
    for side in ("encoder", "decoder"):
        tensors[f"model.{side}.embed_positions.weight"] = table
    bias = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
    tensors["final_logits_bias"] = bias[None]
    return config, {name: tensor.detach() for name, tensor in tensors.items()}


def _folded(layer: OutputLayer) -> nn.Linear:
    matrix = foldable(layer)
    if matrix is None:
        raise NotFoldable(
            f"export_translator: a {type(layer).__name__} is no single matrix, and the exported "
            "output layer is one; train with a layer that folds (drill layers says which)"
        )
    if type(matrix).context is not MatrixLayer.context:
        raise NotExportable(
            f"export_translator: a {type(matrix).__name__} transforms the hidden states, and the "
            "exported model cannot; take a deep-residual, bilinear, tied or full layer"
        )
    return matrix.fold()


# -- weights --------------------------------------------------------------------------------------

Named = Iterator[tuple[str, Tensor]]


def _blocks(transformer: Transformer) -> Named:
    for i, block in enumerate(transformer.encoder):
        yield from _block(f"model.encoder.layers.{i}", block)
    for i, decoder in enumerate(transformer.decoder):
        name, source = f"model.decoder.layers.{i}", decoder.source_attention
        yield from _block(name, decoder)
        yield from _affine(f"{name}.encoder_attn", source.query, "q_proj")
        yield from _affine(f"{name}.encoder_attn", source.key_value, "k_proj", "v_proj")
        yield from _affine(f"{name}.encoder_attn", source.output, "out_proj")
        yield from _affine(name, decoder.around_source_attention.norm, "encoder_attn_layer_norm")
    for side in ("encoder", "decoder"):
        norm = getattr(transformer, f"{side}_norm")
        if isinstance(norm, nn.LayerNorm):  # only where no block ends in one
            yield from _affine(f"model.{side}", norm, "layer_norm")


def _block(name: str, block: EncoderBlock | DecoderBlock) -> Named:
    """What blocks of both sides have."""
    attention, network = block.attention, block.feedforward
    yield from _affine(f"{name}.self_attn", attention.query_key_value, "q_proj", "k_proj", "v_proj")
    yield from _affine(f"{name}.self_attn", attention.output, "out_proj")
    yield from _affine(name, block.around_attention.norm, "self_attn_layer_norm")
    yield from _affine(name, network.inner, "fc1")
    yield from _affine(name, network.output, "fc2")
    yield from _affine(name, block.around_feedforward.norm, "final_layer_norm")


def _affine(where: str, module: nn.Module, *names: str) -> Named:
    """Weight and bias of a module, cut into one part for each name."""
    for parameter in ("weight", "bias"):
        parts = module.get_parameter(parameter).chunk(len(names))
        for name, part in zip(names, parts, strict=True):
            yield f"{where}.{name}.{parameter}", part


# -- settings and subwords ------------------------------------------------------------------------


def _config(transformer: Transformer, max_length: int, tied: bool) -> dict[str, Any]:
    block = transformer.encoder[0]
    pegasus = transformer.norm == "pre"
    sizes: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"] = len(transformer.encoder)
        sizes[f"{side}_attention_heads"] = block.attention.heads
        sizes[f"{side}_ffn_dim"] = block.feedforward.inner.out_features
    # In the published configs of Pegasus too: CTranslate2 reads them.
    norms = {"normalize_before": True, "normalize_embedding": False} if pegasus else {}
    return {
        "model_type": "pegasus" if pegasus else "marian",
        "architectures": ["PegasusForConditionalGeneration" if pegasus else "MarianMTModel"],
        "vocab_size": transformer.source_embedding.num_embeddings,
        "d_model": transformer.output_size,
        **sizes,
        **norms,
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": max_length,
        "dropout": transformer.dropout,
        "activation_dropout": transformer.dropout,
        "attention_dropout": block.attention.dropout,
        "tie_word_embeddings": tied,
        "is_encoder_decoder": True,
        "dtype": str(transformer.source_embedding.weight.dtype).removeprefix("torch."),
        **IDS,
    }


def _tokenizer(subwords: Subwords) -> bytes:
    """The subwords' own JSON, and every text ends in <end>, as sources do in training."""
    tokenizer = json.loads(subwords.description())
    end = subwords.piece(END)
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single[:1], {"Sequence": {"id": "B", "type_id": 0}}, *single[1:]],
        "special_tokens": {end: {"id": end, "ids": [END], "tokens": [end]}},
    }
    return _json(tokenizer)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
