"""``attach`` a layer of drill to a transformers model; ``fold`` it into a stock model again."""

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from drill.errors import nearest
from drill.hf.attached_head import AttachedHead
from drill.hf.attached_model import (
    INNER,
    AttachedModel,
    attached_class,
    attached_config_class,
    install_head,
    label_embedding,
    logit_postprocessing,
    name_of,
    rename_tied,
)
from drill.kernels.loss.checks import IGNORE_INDEX
from drill.kernels.loss.nll import DEFAULT_MEMORY, check_settings
from drill.layers import LAYERS, MatrixLayer, NotFoldable
from drill.layers.checks import check_counts
from drill.layers.wrappers.sampled import foldable

ZERO_START = ("tied", "full", "deep-residual", "sampled", "plif")
"""Layers that can start with the logits of a plain head, the last two if the layer inside can."""
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
"""What configs call a factor of the logits, which the fused loss does not know."""


def attach(
    model: PreTrainedModel,
    layer: str = "deep-residual",
    *,
    zero_start: bool = True,
    tie: bool | None = None,
    label_smoothing: float = 0.0,
    memory: int = DEFAULT_MEMORY,
    **options: Any,
) -> PreTrainedModel:
    """Replace the head of a causal or sequence-to-sequence model by an output layer, in place.

    Args:
        model: any model of transformers with a linear ``lm_head``.
        layer: any layer by its name in ``drill.LAYERS``.
        zero_start: start with the logits of ``model``, so that a pretrained one can be tuned. The
            last map of deep-residual starts at zero, and its activation is tanh unless given.
        tie: whether label vectors are the input embedding, or a matrix of their own that starts as
            the head's. As in ``model`` unless given.
        label_smoothing: of the loss in training.
        memory: most bytes that the loss uses in training; less costs time.
        **options: of the layer, such as ``depth`` or ``dropout``; see its class. ``bias`` is off
            where the model's own head has none. A layer that wraps another, such as a mixture, has
            ``inner``: the options of that one and its ``name``; tied by default.

    Returns:
        ``model``, now an instance of a subclass of its class. Called with labels it returns the
        loss; in training, logits are None then, and at most ``memory`` bytes of them exist.
    """
    if hasattr(model, "peft_config"):
        raise TypeError(
            "attach: this model has adapters of PEFT; attach first, then get_peft_model"
        )
    if isinstance(model, AttachedModel):
        raise TypeError("attach: this model has a layer of drill already; fold(model) first")
    linear: Any = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    fits = type(linear) is nn.Linear and model._tied_weights_keys
    # can_generate: not BertForMaskedLM; input_ids: not Whisper
    if not fits or not model.can_generate() or model.main_input_name != "input_ids":
        raise TypeError(
            f"attach: {type(model).__name__} does not predict the next token id from ids by a "
            "linear head over the rows of an embedding; give a stock causal or "
            "sequence-to-sequence language model of transformers"
        )
    check_settings("sum", label_smoothing, "auto", memory, IGNORE_INDEX)
    _check_name("layer", layer, [*LAYERS])
    matrix, matrix_name = options, layer
    if not issubclass(LAYERS[layer], MatrixLayer):
        matrix = options[INNER] = {"name": "tied", **options.get(INNER, {})}
        names = [name for name, kind in LAYERS.items() if issubclass(kind, MatrixLayer)]
        matrix_name = matrix["name"]
        _check_name(f"{INNER}['name']", matrix_name, names)
        if any(change is not None for change in logit_postprocessing(model)):
            raise ValueError(
                f"attach: layer: {type(model).__name__} caps or shifts the logits of its head, "
                f"and the loss of {layer} does not; take a layer that is one matrix"
            )
    _check_logits(model, linear)
    tied = linear.weight is label_embedding(model)[1].weight
    tie = tied if tie is None else tie
    if zero_start:
        for name in (layer, matrix_name):
            if name not in ZERO_START:
                raise ValueError(
                    f"attach: zero_start: {name} does not start with the logits of a plain head; "
                    f"pass zero_start=False, or take one of {', '.join(ZERO_START)}"
                )
        if tie and not tied and matrix_name != "full":
            raise ValueError(
                "attach: tie: this model's head is a matrix of its own, so labels from the input "
                "embedding cannot start with its logits; pass zero_start=False too"
            )
        if matrix_name == "deep-residual":
            matrix.setdefault("activation", "tanh")
            if not matrix.setdefault("zero_start", True):
                raise ValueError("attach: zero_start: is false in inner; pass it to attach too")
    matrix.setdefault("bias", linear.bias is not None)
    for layer_options in (options, options.get(INNER, {})):
        if "counts" in layer_options:  # the config is JSON
            counts = check_counts("attach", layer_options["counts"], len(linear.weight))
            layer_options["counts"] = counts.tolist()
    drill = {
        # Not "model_type": transformers take a nested block that has one for a whole config.
        "stock_type": model.config.model_type,
        "layer": layer,
        "options": options,
        "tie": tie,
        "label_smoothing": label_smoothing,
        "memory": memory,
    }
    install_head(model, drill)
    stock_config = model.config
    config = copy.deepcopy(stock_config)  # other models may have the stock one
    config.__class__ = attached_config_class(stock_config.__class__)
    config.drill = drill
    for module in model.modules():
        if getattr(module, "config", None) is stock_config:
            module.config = config
    model.__class__ = attached_class(model.__class__, config.__class__)
    return model


def _check_name(argument: str, layer: str, known: list[str]) -> None:
    if layer not in known:
        near = nearest(str(layer), known)
        raise ValueError(f"attach: {argument}: there is no layer {layer!r}{near}")


def fold(model: PreTrainedModel) -> PreTrainedModel:
    """A stock model with the same logits: class and config of the original, the head untied.

    Args:
        model: one that ``attach`` has changed; it stays as it is.

    Returns:
        A copy. NotFoldable is raised where the stock class cannot hold the head.
    """
    if hasattr(model, "peft_config"):
        raise TypeError("fold: this model has adapters of PEFT; fold(model.merge_and_unload())")
    if not isinstance(model, AttachedModel):
        raise TypeError("fold: this model has no layer of drill; attach one first")
    head: AttachedHead = model.get_output_embeddings()
    layer = foldable(head.layer)
    if layer is None:
        raise NotFoldable(
            f"fold: {type(head.layer).__name__} equals no linear head; save the model as it is"
        )
    if type(layer).context is not MatrixLayer.context:
        raise NotFoldable(
            f"fold: {type(layer).__name__} maps the hidden states too, and the stock model has no "
            "such map; export the model with the layer, for example to ONNX"
        )
    stock: Any = copy.deepcopy(model)
    linear: Any = layer.fold()
    if linear.bias is not None and not model.stock_bias:
        if not hasattr(stock, "final_logits_bias"):
            raise NotFoldable(
                f"fold: the layer has a bias, but the head of {type(model).__name__} has none and "
                "would drop it silently; attach with bias=False"
            )
        stock.final_logits_bias += linear.bias
        linear.bias = None
    stock.__class__, stock.config.__class__ = type(model).stock, type(model.config).stock
    del stock.config.drill
    name = name_of(model, head)
    stock.set_submodule(name, linear)
    rename_tied(stock, f"{name_of(model, head.matrix)}.bias", f"{name}.bias")
    stock._tied_weights_keys = {
        **stock._tied_weights_keys,
        f"{name}.weight": f"{model.label_embedding}.weight",
    }
    _untie(stock)
    return stock


def _untie(stock: Any) -> None:
    """Say in the config that the head is not tied, and store what else was tied under each name."""
    config = stock.config
    always = type(config).from_dict({**config.to_dict(), "tie_word_embeddings": False})
    if always.tie_word_embeddings:
        return  # T5: transformers leaves a head untied that differs from the embedding in the file
    for target in stock.all_tied_weights_keys:
        parent, _, name = target.rpartition(".")
        value = stock.get_parameter(target)
        setattr(stock.get_submodule(parent), name, nn.Parameter(value.detach().clone()))
    for part in stock.modules():
        if isinstance(part, PreTrainedModel):
            part.config.tie_word_embeddings = False
            part.all_tied_weights_keys = {}


@torch.no_grad()
def _check_logits(model: Any, linear: nn.Linear) -> None:
    """Raise where the model does more with the logits of its head than the fused loss does.

    On the meta device only factors that the config names are seen.
    """
    error = TypeError(
        f"attach: {type(model).__name__} changes its logits after the head in a way that drill "
        "does not know, so its loss would be wrong; take a model without such a factor"
    )
    text_config = model.config.get_text_config()
    if any(getattr(text_config, name, None) not in (None, 1) for name in SCALES):
        raise error
    embedding = model.get_input_embeddings().weight
    if embedding.is_meta:
        return
    ids = torch.tensor([[len(embedding) // 2, len(embedding) // 3]], device=embedding.device)
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    outputs: list[torch.Tensor] = []
    hook = linear.register_forward_hook(lambda *call: outputs.append(call[-1].clone()))
    try:
        logits = model(**inputs, return_dict=True).logits.float()
    finally:
        hook.remove()
    expected, (softcap, bias) = outputs[0].float(), logit_postprocessing(model)
    if softcap is not None:
        expected = softcap * torch.tanh(expected / softcap)
    if bias is not None:
        expected = expected + bias
    rounding = 2 * torch.finfo(outputs[0].dtype).eps * logits.abs().max()
    if (logits - expected).abs().max() > rounding:
        raise error
