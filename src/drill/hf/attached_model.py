"""The classes of models and configs with a layer attached: subclasses of the stock ones."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig
from transformers import initialization as init
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.generic import can_return_tuple

from drill.hf.attached_head import AttachedHead
from drill.kernels.loss.checks import IGNORE_INDEX
from drill.layers import LAYERS, MatrixLayer, OutputLayer

if TYPE_CHECKING:
    from typing import Any as Stock  # whatever class comes behind these two in a subclass
else:
    Stock = object

INNER = "inner"  # the matrix layer that a layer wraps, as in recipes
MODEL_TYPE = "drill"
"""What ``config.json`` says, so that without drill nothing reads the checkpoint as a stock model.
In memory a config has the type of its stock class, by which libraries look up what they need."""
REFUSAL = "import drill.hf, then load this folder by an Auto class such as AutoModelForCausalLM"
"""What ``config.json`` has as the name of the weights, at which ``from_pretrained`` of a stock
class raises: without the layer it would take the input embedding for the head."""


@contextmanager
def heads_with(heads: list[AttachedHead], **attributes: Any) -> Iterator[None]:
    """A block in which heads have these attributes; after it those of their class again."""
    for head in heads:
        vars(head).update(attributes)
    try:
        yield
    finally:
        for head in heads:
            for name in attributes:
                del vars(head)[name]


class AttachedModel(Stock):
    """Mixin for a transformers model: replaces its head and computes the loss inside forward."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        install_head(self, config.drill)

    @classmethod
    def is_custom_code(cls) -> bool:
        return False  # so that weights are converted, on loading, as those of the stock class

    @can_return_tuple
    def forward(
        self,
        *args: Any,
        labels: Any = None,  # Tensor | None
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """The stock forward. With labels also the loss; in training logits are None then."""
        heads = self.heads()
        for head in heads:
            head.share(self.get_submodule(self.label_embedding))
        first = all(kwargs.get(name) is None for name in ("past_key_values", "cache_params"))
        if first and not torch.compiler.is_compiling():
            for head in heads:
                head.check_rows()
        if labels is None and shift_labels is None:
            return super().forward(*args, **kwargs)
        kwargs["return_dict"] = True
        if self.config.is_encoder_decoder:
            kwargs["use_cache"] = False
            if kwargs.get("decoder_input_ids") is None:
                kwargs["decoder_input_ids"] = self.decoder_inputs(labels)
        if shift_labels is not None:
            targets = shift_labels
        elif self.config.is_encoder_decoder:
            targets = labels
        else:
            # Position t predicts t + 1.
            targets = F.pad(labels, (0, 1), value=IGNORE_INDEX)[..., 1:]
        if self.training:
            losses, output = self.fused_loss(heads, targets, *args, **kwargs)
            logits = None
        else:
            output = super().forward(*args, **kwargs)
            logits = output.logits
            flat = logits.flatten(0, -2).float()
            losses = F.cross_entropy(flat, targets.flatten().to(flat.device), reduction="sum")
        if num_items_in_batch is None:
            num_items_in_batch = (targets != IGNORE_INDEX).sum().clamp(min=1)
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(losses.device)
        loss = losses / num_items_in_batch
        if output.get("aux_loss") is not None:  # of a mixture of experts
            weight = self.config.get_text_config().router_aux_loss_coef
            loss = loss + weight * output.aux_loss.to(loss.device)
        return type(output)(**{**output, "loss": loss, "logits": logits})

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The stock generate, of the parameters as they are now."""
        for head in self.heads():
            head.check_rows()  # here, because forward gets past_key_values from the first call on
        return super().generate(*args, **kwargs)

    def fused_loss(
        self, heads: list[AttachedHead], targets: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """The sum of the losses without logits in memory, and the output of the stock forward."""
        captured: list[Tensor] = []
        with heads_with(heads, captured=captured):
            output = super().forward(*args, **kwargs)
        softcap, logit_bias = logit_postprocessing(self)
        losses = self.get_output_embeddings()(
            captured[0],
            targets.to(captured[0].device),
            label_smoothing=self.config.drill["label_smoothing"],
            memory=self.config.drill["memory"],
            softcap=softcap,
            logit_bias=logit_bias,
        )
        return losses, output

    def decoder_inputs(self, labels: Tensor) -> Tensor:
        """The labels moved by one, for teacher forcing."""
        if hasattr(self, "prepare_decoder_input_ids_from_labels"):
            return self.prepare_decoder_input_ids_from_labels(labels)
        shifted = labels.roll(1, dims=-1)  # M2M100, Blenderbot
        shifted[..., 0] = self.config.decoder_start_token_id
        return shifted.masked_fill(shifted == IGNORE_INDEX, self.config.pad_token_id)

    def heads(self) -> list[AttachedHead]:
        """The head; with PEFT, which trains a copy, the head and its copy."""
        head = self.get_output_embeddings()
        heads = [x for x in head.modules() if isinstance(x, AttachedHead)]
        if not heads:
            raise TypeError(
                f"the head of this model is a {type(head).__name__} now, not the output layer that "
                "attach put there; set it back, or attach to a stock model instead"
            )
        return heads

    def _init_weights(self, module: nn.Module) -> None:
        head = self.get_output_embeddings()
        parts = dict(head.layer.named_modules()) if isinstance(head, AttachedHead) else {}
        name = next((name for name, part in parts.items() if part is module), None)
        if name is None or module is head.matrix.embedding:
            super()._init_weights(module)
        else:  # a part of the layer that a checkpoint lacks
            matrix = head.matrix
            fresh = build_layer(self.config.drill, matrix.embedding, matrix.hidden_size)
            for key, tensor in chain(
                module.named_parameters(recurse=False), module.named_buffers(recurse=False)
            ):
                init.copy_(tensor, getattr(fresh.get_submodule(name), key))

    def _get_resized_lm_head(self, head: AttachedHead, size: int, **kwargs: Any) -> AttachedHead:
        head.share(self.get_submodule(self.label_embedding))
        head.layer.resize(size)
        options = self.config.drill["options"]  # of which from_pretrained builds the layer again
        for layer_options in (options, options.get(INNER, {})):
            if "counts" in layer_options:
                layer_options["counts"] = (layer_options["counts"] + size * [0])[:size]
        options.update({key: getattr(head.layer, key) for key in head.layer.kept_by_resize})
        return head

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        head = self.get_output_embeddings()
        trained = {parameter: parameter.requires_grad for parameter in head.parameters()}
        with heads_with(self.heads(), resizing=True):
            embedding = super().resize_token_embeddings(*args, **kwargs)
        for parameter, requires_grad in trained.items():
            parameter.requires_grad_(requires_grad)  # stock code sets them all alike
        head.share(self.get_submodule(self.label_embedding))
        return embedding


class AttachedConfig(Stock):
    """Mixin for a transformers config: writes a ``config.json`` that stock classes refuse.

    That of a part without the head, such as the body that AutoModel reads, is a stock one.
    ``drill`` has the stock type, the layer's name and options, and what else ``attach`` was given.
    """

    drill: dict[str, Any]

    def to_diff_dict(self) -> dict[str, Any]:
        config = super().to_diff_dict()
        model_class = getattr(transformers, (self.architectures or [""])[0], None)
        if model_class is not None and not model_class.can_generate():  # the body by AutoModel
            config.pop("drill", None)
            return config
        return {**config, "model_type": MODEL_TYPE, "transformers_weights": REFUSAL}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        stock = {**config_dict, "model_type": config_dict["drill"]["stock_type"]}
        stock.pop("transformers_weights", None)
        return super().from_dict(stock, **kwargs)


class DrillConfig(PretrainedConfig):
    """Reads a config.json of ``MODEL_TYPE``: gives the attached class of the stock config."""

    model_type = MODEL_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        stock = CONFIG_MAPPING[config_dict["drill"]["stock_type"]]
        return attached_config_class(stock).from_dict(config_dict, **kwargs)


AutoConfig.register(MODEL_TYPE, DrillConfig)


@functools.cache
def attached_config_class(stock: Any) -> Any:
    """The subclass of a config class, registered with the Auto classes that know the stock one.

    With those for models without a head (AutoModel, AutoModelForSequenceClassification) it is not:
    they read the rest of a checkpoint.
    """
    names = {"__module__": "drill.hf", "stock": stock}
    config_class = type(stock.__name__, (AttachedConfig, stock), names)
    for name, auto in vars(modeling_auto).items():
        model: Any = auto._model_mapping.get(stock, None) if name.startswith("AutoModel") else None
        if hasattr(model, "can_generate") and model.can_generate():
            auto.register(config_class, attached_class(model, config_class), exist_ok=True)
    return config_class


@functools.cache
def attached_class(stock: Any, config_class: Any) -> Any:
    """The subclass of a model class.

    It has the name of the stock class, because libraries choose by that name: the Trainer shifts
    labels for label smoothing only where it knows the name.
    """

    @functools.wraps(stock.forward)  # generate and the Trainer read the signature
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return AttachedModel.forward(self, *args, **kwargs)

    names = {"__module__": "drill.hf", "config_class": config_class, "stock": stock}
    return type(stock.__name__, (AttachedModel, stock), {**names, "forward": forward})


def attached_class_by_name(name: str) -> Any:
    """The subclass of the model or config class of that name."""
    stock = getattr(transformers, name)
    if issubclass(stock, PretrainedConfig):
        return attached_config_class(stock)
    return attached_class(stock, attached_config_class(stock.config_class))


def build_layer(drill: dict[str, Any], embedding: Any, hidden_size: int) -> OutputLayer:
    layer, options = LAYERS[drill["layer"]], dict(drill["options"])
    if not issubclass(layer, MatrixLayer):
        inner = dict(options.pop(INNER))
        matrix = {"layer": inner.pop("name"), "options": inner}
        return layer(build_layer(matrix, embedding, hidden_size), **options)
    if hidden_size != embedding.embedding_dim:
        options["hidden_size"] = hidden_size
    return layer(embedding, **options)


def install_head(model: Any, drill: dict[str, Any]) -> None:
    """Replace the plain linear head of ``model`` by the layer that ``drill`` describes.

    Its matrix goes on as the label vectors, unless these are the input embedding.
    """
    linear = model.get_output_embeddings()
    path, embedding = label_embedding(model)
    matrix_name = drill["options"].get(INNER, {}).get("name", drill["layer"])
    shared = drill["tie"] and matrix_name != "full"
    if not shared:
        weight = linear.weight
        if weight is embedding.weight:
            weight = nn.Parameter(weight.detach().clone())
        embedding = nn.Embedding(weight.shape[0], weight.shape[1], device="meta")
        embedding.weight = weight
    layer = build_layer(drill, embedding, linear.in_features)
    if layer.hidden_size != linear.in_features:
        raise ValueError(
            f"attach: {type(layer).__name__} reads hidden states of width {layer.hidden_size}, but "
            f"the head of {type(model).__name__} gets the last state alone, of width "
            f"{linear.in_features}; leave out hidden_size and widths"
        )
    head = AttachedHead(layer, shared)
    matrix = head.matrix
    if matrix_name == "full":
        matrix.embedding = embedding
    if matrix.bias is not None and linear.bias is not None:
        matrix.bias = linear.bias
    name = name_of(model, linear)
    model.set_submodule(name, head.train(model.training))
    model.label_embedding, model.stock_bias = path, linear.bias is not None
    tied = dict(model._tied_weights_keys)
    tied.pop(f"{name}.weight")
    model._tied_weights_keys = tied
    model.all_tied_weights_keys.pop(f"{name}.weight", None)
    rename_tied(model, f"{name}.bias", f"{name_of(model, matrix)}.bias")
    for module_name in (name, path) if shared else (name,):
        model._tp_plan.pop(module_name, None)  # tensor parallelism would shard it


def rename_tied(model: Any, old: str, new: str) -> None:
    """Of a parameter with a second name, as BERT has for the bias of its head."""
    parent, _, name = new.rpartition(".")
    for keys in (model._tied_weights_keys, model.all_tied_weights_keys):
        second = keys.pop(old, None)
        if second is not None and getattr(model.get_submodule(parent), name) is not None:
            keys[new] = second


def logit_postprocessing(model: Any) -> tuple[float | None, Tensor | None]:
    """What a model does with the logits of its head: Gemma's soft cap, BART's and Marian's bias."""
    bias = getattr(model, "final_logits_bias", None)
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return softcap, None if bias is None else bias.view(-1)


def label_embedding(model: Any) -> tuple[str, nn.Embedding]:
    """Name and module of the embedding that the model would tie its head to."""
    head_name = name_of(model, model.get_output_embeddings())
    path = model._tied_weights_keys[f"{head_name}.weight"].removesuffix(".weight")
    return path, model.get_submodule(path)


def name_of(model: nn.Module, module: nn.Module) -> str:
    return next(name for name, part in model.named_modules() if part is module)
