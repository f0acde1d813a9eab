"""A layer in the place of the head of a transformers model: function, loss, checkpoint, fold."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from drill.layers import LAYERS, DeepResidual, MatrixLayer, NotFoldable, losses
from tests.hf.tiny_models import (
    BART,
    CONFIGS,
    FAMILIES,
    LLAMA,
    T,
    V,
    auto,
    batch,
    build,
    logits,
    perturb,
)

from drill.hf import attach, fold  # isort: skip  (after the check for transformers)

WRAPPERS = {
    "mixture": {"experts": 2}, "sampled": {"samples": 5}, "adaptive": {"cutoffs": [30]},
    "sigsoftmax": {}, "plif": {"pieces": 9}, "softcap": {"cap": 5.0}, "mixtape": {"experts": 2},
    "doc": {"experts": [2]},
}  # fmt: skip
ATTACHED_LAYERS = {
    "deep-residual": {"depth": 2}, "tied": {}, "full": {}, "bilinear": {"zero_start": False},
    "dual": {"zero_start": False, "joint_size": 24},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_attached_it_starts_with_the_logits_and_the_loss_of_the_model(family):
    model = build(family)
    with torch.no_grad():
        before = model(**batch())
    assert attach(model, "deep-residual", depth=2) is model
    with torch.no_grad():
        after = model(**batch())
    torch.testing.assert_close(after.logits, before.logits)
    torch.testing.assert_close(after.loss, before.loss)
    torch.testing.assert_close(model.train()(**batch()).loss.detach(), before.loss)
    tied = not family.endswith("untied")
    embedding = model.get_submodule(model.label_embedding)
    assert (model.lm_head.layer.label_weight is embedding.weight) == tied


@pytest.mark.parametrize("inner", ["tied", "full", "deep-residual"])
@pytest.mark.parametrize("layer", ["sampled", "plif"])
@pytest.mark.parametrize("family", ["llama", "llama-untied"])
def test_layers_that_start_as_the_one_inside_start_with_the_logits_of_the_model(
    family, layer, inner
):
    model = build(family)
    before = logits(model)
    attach(model, layer, **WRAPPERS[layer], inner={"name": inner})
    torch.testing.assert_close(logits(model), before)


def scores_and_targets(model, scores):
    """Of all tokens of the batch, each with the one after it where the model shifts its labels."""
    targets = batch()["labels"]
    if not model.config.is_encoder_decoder:
        scores, targets = scores[:, :-1], targets[:, 1:]
    return scores.flatten(0, 1), targets.flatten()


@pytest.mark.parametrize(
    ("family", "layer"),
    [*(("gpt2", layer) for layer in ATTACHED_LAYERS), ("llama-untied", "full"),
     ("gemma", "deep-residual"), ("gemma", "dual"), ("marian", "deep-residual")],
)  # fmt: skip
def test_loss_of_training_and_its_gradients_are_those_of_the_logits(family, layer):
    model = perturb(attach(build(family), layer, **ATTACHED_LAYERS[layer]))
    inputs = batch()
    expected = model(**inputs)  # in eval mode: from the logits
    loss = F.cross_entropy(*scores_and_targets(model, expected.logits))
    torch.testing.assert_close(expected.loss, loss)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)

    output = model.train()(**inputs)
    assert output.logits is None
    assert output.to_tuple()[0] is output.loss
    torch.testing.assert_close(output.loss, loss)
    fused = torch.autograd.grad(output.loss, trained, allow_unused=True)
    torch.testing.assert_close(fused, gradients)


@pytest.mark.parametrize("family", ["llama", "gemma", "bart"])
def test_loss_options(family):
    """num_items_in_batch divides the sum; labels are smoothed in training only."""
    model = perturb(attach(build(family), depth=1, label_smoothing=0.3))
    inputs = batch()
    with torch.no_grad():
        plain = model(**inputs)
    scores, targets = scores_and_targets(model, plain.logits)
    count = (targets != -100).sum()
    smoothed = F.cross_entropy(scores, targets, label_smoothing=0.3)
    model.train()
    torch.testing.assert_close(model(**inputs).loss, smoothed)
    torch.testing.assert_close(model(**inputs, num_items_in_batch=50).loss, smoothed * count / 50)
    several = model(**inputs, num_items_in_batch=torch.tensor(50))
    torch.testing.assert_close(several.loss, smoothed * count / 50)
    ignored = torch.full_like(inputs["labels"], -100)
    if not model.config.is_encoder_decoder:
        assert model(inputs["input_ids"], labels=ignored).loss == 0
        shifted = F.pad(inputs["labels"], (0, 1), value=-100)[:, 1:]
        given = model(inputs["input_ids"], labels=inputs["labels"], shift_labels=shifted)
        torch.testing.assert_close(given.loss, smoothed)
    with pytest.raises(IndexError):
        model(inputs["input_ids"], labels=inputs["labels"].clamp(min=0) + V)


def test_memory_of_the_loss_is_saved_in_the_config(tmp_path, calls_of):
    attach(build("llama"), depth=1, memory=2**12).save_pretrained(tmp_path)
    model, calls = T.AutoModelForCausalLM.from_pretrained(tmp_path), calls_of(losses, "nll")
    small = model.train()(**batch()).loss
    assert [call.options["memory"] for call in calls] == [2**12]
    model.config.drill["memory"] = 2**30
    torch.testing.assert_close(small, model(**batch()).loss)


EACH = [(family, "deep-residual") for family in FAMILIES]
EACH += [(family, layer) for family in ("gpt2", "marian") for layer in ("tied", "full", "bilinear")]


@pytest.mark.parametrize(("family", "layer"), [*EACH, ("llama", "dual")])
def test_checkpoint_is_read_again(family, layer, tmp_path):
    model = perturb(attach(build(family), layer, **ATTACHED_LAYERS[layer]))
    model.save_pretrained(tmp_path)
    again, report = auto(model.config).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(again) is type(model)
    assert torch.equal(logits(again), logits(model))
    assert again.config.model_type == CONFIGS[family]().model_type


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("gpt2", ["PreTraining"]),
        ("bart", ["PreTraining", "MaskedLM"]),
        ("llava", ["ImageTextToText", "MultimodalLM"]),
    ],
)
def test_checkpoint_is_read_by_every_auto_class_that_has_the_head(family, names, tmp_path):
    if family == "llava":
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        vision = T.CLIPVisionConfig(**sizes, num_attention_heads=2, image_size=28, patch_size=14)
        text = CONFIGS["llama"]()
        config = T.LlavaConfig(text_config=text, vision_config=vision, image_token_index=97)
        model = attach(T.LlavaForConditionalGeneration(config).eval(), depth=1)
    else:
        model = attach(build(family), depth=1)
    perturb(model).save_pretrained(tmp_path)
    for name in names:
        again = getattr(T, f"AutoModelFor{name}").from_pretrained(tmp_path)
        assert type(again) is type(model)
        assert torch.equal(logits(again), logits(model))
    body = T.AutoModel.from_pretrained(tmp_path)  # which has no head
    assert torch.equal(body.get_input_embeddings().weight, model.get_input_embeddings().weight)
    body.save_pretrained(tmp_path / "body")  # a stock checkpoint
    config = T.PretrainedConfig.get_config_dict(tmp_path / "body")[0]
    assert ("drill" in config, config["model_type"]) == (False, model.config.model_type)
    again = type(body).from_pretrained(tmp_path / "body")
    assert torch.equal(again.get_input_embeddings().weight, body.get_input_embeddings().weight)


@pytest.mark.parametrize("family", ["llama", "llama-untied", "gpt2", "t5"])
def test_a_checkpoint_is_not_taken_for_a_stock_one(family, tmp_path):
    model = attach(build(family), depth=1)
    model.save_pretrained(tmp_path)
    assert T.PretrainedConfig.get_config_dict(tmp_path)[0]["model_type"] == "drill"
    config = type(CONFIGS[family]()).from_pretrained(tmp_path)
    assert config.vocab_size == V  # its own sizes: not those of a default config, which may be 7B
    with pytest.raises(ValueError, match=r"import drill\.hf"):
        type(model).stock.from_pretrained(tmp_path)
    assert torch.equal(logits(type(model).from_pretrained(tmp_path)), logits(model))


@pytest.mark.parametrize(("family", "layer"), EACH)
def test_folded_it_is_a_stock_model_with_the_same_logits(family, layer, tmp_path):
    stock_class = type(build(family))
    model = perturb(attach(build(family), layer, **ATTACHED_LAYERS[layer]))
    expected = logits(model)
    stock = fold(model)
    assert type(stock) is stock_class
    assert type(stock.config) is type(CONFIGS[family]())
    assert type(stock.lm_head) is nn.Linear
    torch.testing.assert_close(logits(stock), expected)
    stock.save_pretrained(tmp_path)
    again = stock_class.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(again), expected)
    assert torch.equal(logits(model), expected)  # a copy was folded


@pytest.mark.parametrize("bias", [True, False])
def test_a_head_whose_bias_has_a_second_name_is_saved_and_folded(bias, tmp_path):
    sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config = T.BertConfig(**sizes, num_attention_heads=4, is_decoder=True)
    model = attach(T.AutoModelForCausalLM.from_config(config), depth=1, bias=bias)
    perturb(model).eval()
    expected = logits(model)
    model.save_pretrained(tmp_path / "attached")
    again = T.AutoModelForCausalLM.from_pretrained(tmp_path / "attached")
    assert torch.equal(logits(again), expected)
    head = again.get_output_embeddings()
    assert (head.bias is None) == (not bias)
    assert not bias or again.cls.predictions.bias is head.bias
    fold(model).save_pretrained(tmp_path / "stock")
    stock = T.BertLMHeadModel.from_pretrained(tmp_path / "stock")
    torch.testing.assert_close(logits(stock), expected)


def test_fold_raises_where_the_stock_model_cannot_hold_the_layer():
    with pytest.raises(NotFoldable, match="bias=False"):
        fold(attach(build("gpt2"), depth=1, bias=True))
    with pytest.raises(NotFoldable, match="hidden states"):
        fold(attach(build("gpt2"), "dual", zero_start=False))
    with pytest.raises(TypeError, match="attach"):
        fold(build("gpt2"))


def test_bias_is_folded_into_the_one_of_marian():
    model = perturb(attach(build("marian"), depth=1, bias=True))
    torch.testing.assert_close(logits(fold(model)), logits(model))


@pytest.mark.parametrize("family", ["gpt2", "llama-untied", "t5", "marian"])
def test_generate_encodes_the_labels_once_and_again_after_a_change(family, calls_of):
    model = perturb(attach(build(family), depth=2))
    encoded = calls_of(DeepResidual, "labels")
    ids = batch()["input_ids"]
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    options |= {"eos_token_id": None, "pad_token_id": 0}
    expected = fold(model).generate(ids, **options)
    encoded.clear()
    assert torch.equal(model.generate(ids, **options), expected)
    assert len(encoded) == 1
    with torch.no_grad():
        model.lm_head.layer.label_weight[:, :4] += 1.0
    changed = fold(model).generate(ids, **options)
    assert torch.equal(model.generate(ids, **options), changed)


@pytest.mark.parametrize("family", ["llama", "marian"])
@pytest.mark.parametrize(("backend", "fullgraph"), [("eager", False), ("aot_eager", True)])
def test_compiled_it_encodes_the_labels_once_and_again_after_a_change(
    family, backend, fullgraph, calls_of
):
    model = perturb(attach(build(family), depth=2))
    encoded = calls_of(DeepResidual, "labels")
    inputs = {"input_ids": batch()["input_ids"], "use_cache": False}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
    with torch.no_grad():
        compiled(**inputs)  # the first call may keep none: torch watches the operators
        for write in (nn.init.zeros_, lambda weight: weight.data.add_(2), nn.init.ones_):
            write(model.lm_head.layer.maps[0].linear.weight)
            encoded.clear()
            found = [compiled(**inputs).logits for _ in range(3)]
            assert len(encoded) == 1
            torch.testing.assert_close(found[-1], copy.deepcopy(model)(**inputs).logits)
        other = perturb(copy.deepcopy(model))  # is another head to the same code
        again = torch.compile(other, backend=backend, fullgraph=fullgraph)(**inputs).logits
        torch.testing.assert_close(again, other(**inputs).logits)
    loss = compiled(**inputs, labels=batch()["labels"]).loss  # with gradients
    torch.testing.assert_close(loss, model(**inputs, labels=batch()["labels"]).loss)


def test_compiled_code_that_writes_and_reads_the_head_raises():
    model = perturb(attach(build("llama"), depth=1))

    @torch.compile(backend="aot_eager")
    @torch.no_grad()
    def write_and_read(ids):
        model.lm_head.layer.maps[0].linear.weight.mul_(2)
        return model(ids, use_cache=False).logits

    with pytest.raises(RuntimeError, match="outside"):
        write_and_read(batch()["input_ids"])


WRITES = {
    "data": lambda weight, row: weight.data[row].neg_(),
    "numpy": lambda weight, row: weight.detach().numpy()[row].__iadd__(1e-3),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_rows_written_past_the_version_counter_are_seen(family, write):
    model = perturb(attach(build(family), depth=1))
    weight, ids = model.get_input_embeddings().weight, batch()["input_ids"]
    for row in range(V):
        logits(model)
        WRITES[write](weight, row)
        expected = logits(copy.deepcopy(model))
        assert torch.equal(logits(model), expected)
    options = {"max_new_tokens": 2, "output_scores": True, "return_dict_in_generate": True}
    model.generate(ids, **options)
    weight.data[-2:] = 7 * weight.data[:-2].mean(0)  # as new tokens are often initialised
    expected = copy.deepcopy(model).generate(ids, **options).scores
    assert all(map(torch.equal, model.generate(ids, **options).scores, expected))


@pytest.mark.parametrize(
    ("family", "bias", "grad"),
    [
        *((family, True, False) for family in FAMILIES),
        ("gpt2", False, True),
        ("marian", False, True),
    ],
)
def test_resize_token_embeddings_resizes_the_head(family, bias, grad):
    model = perturb(attach(build(family), depth=1, bias=bias))
    expected = logits(model)
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    with torch.set_grad_enabled(grad):
        if family == "marian-two-vocabularies":
            model.resize_decoder_token_embeddings(V + 6)
        else:
            model.resize_token_embeddings(V + 6)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == trained
    assert logits(model).shape[-1] == V + 6
    torch.testing.assert_close(logits(model)[..., :V], expected)
    model.train()(**batch()).loss.backward()
    assert all(p.grad is not None for p in model.lm_head.parameters())


def test_copies_have_their_own_embedding():
    model = perturb(attach(build("llama"), depth=1))
    expected = logits(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(other), expected)
        assert other.lm_head.layer.label_weight is other.get_input_embeddings().weight
        assert type(other) is type(model)
        with torch.no_grad():
            other.get_input_embeddings().weight += 1.0
        assert torch.equal(logits(model), expected)


def test_another_embedding_is_the_one_that_is_encoded():
    model = perturb(attach(build("llama"), depth=1))
    model.set_input_embeddings(nn.Embedding(V, 32))
    torch.testing.assert_close(logits(model), logits(fold(model)))
    assert model.lm_head.layer.label_weight is model.get_input_embeddings().weight


def test_on_the_meta_device_and_from_a_config(tmp_path):
    with torch.device("meta"):
        model = attach(T.AutoModelForCausalLM.from_config(CONFIGS["llama"]()), depth=2)
    assert all(p.is_meta for p in model.parameters())
    real = perturb(attach(build("llama"), depth=2))
    model.load_state_dict(real.state_dict(), assign=True)
    assert model.lm_head.layer.label_weight is model.get_input_embeddings().weight
    # A config alone is enough: the layer starts as its class does, the rest as transformers do.
    torch.manual_seed(0)
    fresh = T.AutoModelForCausalLM.from_config(real.config)
    last, first = fresh.lm_head.layer.maps[-1].linear, fresh.lm_head.layer.maps[0].linear
    assert not last.weight.any()
    assert 0.09 < first.weight.abs().max() <= 0.1
    # And so it does where a checkpoint lacks the layer.
    build("llama").save_pretrained(tmp_path)
    loaded = type(real).from_pretrained(tmp_path, config=real.config)
    torch.testing.assert_close(logits(loaded), logits(build("llama")))
    assert 0.09 < loaded.lm_head.layer.maps[0].linear.weight.abs().max() <= 0.1


def test_gates_by_frequency_are_saved_and_built_again(tmp_path):
    gated = {"depth": 1, "gate": "frequency", "counts": torch.arange(V)}
    model = attach(build("llama"), **gated)
    build("llama").save_pretrained(tmp_path / "stock")  # lacks the layer
    loaded = type(model).from_pretrained(tmp_path / "stock", config=model.config)
    assert torch.equal(loaded.lm_head.layer.gates, model.lm_head.layer.gates)
    inner = {"name": "deep-residual", **gated}
    model = attach(build("llama"), "mixture", experts=2, inner=inner, zero_start=False)
    model.resize_token_embeddings(V + 6)
    model.save_pretrained(tmp_path / "mixture")
    again = T.AutoModelForCausalLM.from_pretrained(tmp_path / "mixture")
    assert torch.equal(logits(again), logits(model))


def test_config_of_the_caller_stays_as_it_was():
    config = CONFIGS["llama"]()
    before = config.to_dict()
    for _ in range(2):
        model = attach(T.AutoModelForCausalLM.from_config(config), depth=1)
        assert all(x.config is model.config for x in model.modules() if hasattr(x, "config"))
    assert type(config) is T.LlamaConfig
    assert config.to_dict() == before


def test_untied_model_can_share_its_embedding():
    model = attach(build("llama-untied"), depth=1, tie=True, zero_start=False)
    assert model.lm_head.layer.label_weight is model.get_input_embeddings().weight
    assert not any(name.startswith("lm_head.layer.embedding") for name in model.state_dict())
    torch.testing.assert_close(logits(fold(model)), logits(model))


ANY = {"zero_start": False}
INNER = [
    ({"name": "deep-residul"}, ValueError, "; did you mean deep-residual"),
    ({"dept": 1}, TypeError, "TiedSoftmax.*dept"),
    ("deep-residual", TypeError, "mapping"),
]


@pytest.mark.parametrize(
    ("options", "error", "key"),
    [
        ({"layer": "deep-residul"}, ValueError, "; did you mean deep-residual"),
        ({"layer": 4}, ValueError, "; known are"),
        ({"layer": "deep-residual", "dept": 2}, TypeError, "DeepResidual.*'dept'"),
        ({"layer": "adaptive", "zero_start": False}, TypeError, "AdaptiveSoftmax.*cutoffs"),
        *(
            ({"layer": "mixture", "zero_start": False, "inner": inner}, *said)
            for inner, *said in INNER
        ),
        *(
            ({"layer": name, **WRAPPERS[name]}, ValueError, "zero_start")
            for name in WRAPPERS
            if name not in ("sampled", "plif")
        ),
        ({"layer": "sampled", "inner": {"name": "dual"}}, ValueError, "zero_start"),
        ({"layer": "plif", "inner": {"name": "deep-residual", **ANY}}, ValueError, "zero_start"),
        ({"layer": "doc", "experts": [1, 2], "widths": [32, 32], **ANY}, ValueError, "widths"),
        ({"layer": "bilinear", "hidden_size": 48, **ANY}, ValueError, "hidden_size"),
        ({"layer": "softcap", "inner": {"name": "mixture"}}, ValueError, "inner"),
        ({"layer": "dual"}, ValueError, "zero_start"),
        ({"layer": "deep-residual", "activation": "sigmoid"}, ValueError, "activation"),
        ({"layer": "deep-residual", "depth": -1}, ValueError, "depth"),
        ({"layer": "tied", "depth": 1}, TypeError, "TiedSoftmax.*'depth'"),
        ({"layer": "tied", "inner": {}}, TypeError, "inner"),
        ({"gate": "frequency", "counts": [3]}, ValueError, "counts"),
        ({"tie": True}, ValueError, "tie"),
        ({"memory": 0}, ValueError, "memory"),
    ],
)
def test_what_cannot_be_attached_leaves_the_model_as_it_was(options, error, key):
    model = build("llama-untied")
    stock = type(model)
    with pytest.raises(error, match=key):
        attach(model, **options)
    assert type(model) is stock
    assert type(model.lm_head) is nn.Linear


@pytest.mark.parametrize(
    "name", [name for name in LAYERS if not issubclass(LAYERS[name], MatrixLayer)]
)
def test_layers_over_another_layer(name, tmp_path):
    options = {"zero_start": False, "inner": {"name": "deep-residual", "depth": 1}}
    model = perturb(attach(build("llama"), name, **options, **WRAPPERS[name]))
    assert model.lm_head.layer.label_weight is model.get_input_embeddings().weight
    model.save_pretrained(tmp_path)
    again, report = T.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = logits(model)
    assert torch.equal(logits(again), expected)
    assert torch.equal(logits(copy.deepcopy(model)), expected)
    loss = model(**batch()).loss
    fused = model.train()(**batch()).loss
    fused.backward()
    assert all(p.grad is not None for p in model.lm_head.parameters())
    if name == "sampled":
        torch.testing.assert_close(logits(fold(model)), expected)
    else:
        torch.testing.assert_close(fused, loss)
        with pytest.raises(NotFoldable, match=type(model.lm_head.layer).__name__):
            fold(model)
        with pytest.raises(NotFoldable):  # a loss of others would train another model
            model.lm_head.weight  # noqa: B018
    model.resize_token_embeddings(V + 6)
    assert logits(model).shape[-1] == V + 6
    with pytest.raises(ValueError, match="logits"):
        attach(build("gemma"), name, **options, **WRAPPERS[name])


def test_models_whose_head_cannot_be_replaced():
    with pytest.raises(TypeError, match=r"Linear.*head"):
        attach(nn.Linear(4, V))
    with pytest.raises(TypeError, match="head"):
        attach(T.AutoModel.from_config(CONFIGS["llama"]()))
    with pytest.raises(TypeError, match="fold"):
        attach(attach(build("llama"), depth=1))
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    masked = T.BertForMaskedLM(T.BertConfig(vocab_size=V, hidden_size=32, **sizes))
    with pytest.raises(TypeError, match="next token"):  # its labels are not shifted
        attach(masked)
    whisper = T.WhisperForConditionalGeneration(
        T.WhisperConfig(**BART, num_mel_bins=8, pad_token_id=0)
    )
    with pytest.raises(TypeError, match="next token"):
        attach(whisper)


def test_another_head_than_the_one_attached_raises():
    model = attach(build("llama"), depth=1)
    model.set_output_embeddings(nn.Linear(32, V, bias=False))
    with pytest.raises(TypeError, match=r"Linear.*attach"):
        model(**batch())


def test_an_embedding_that_is_not_whole_raises():
    model = attach(build("llama-untied"), depth=1)
    head = model.lm_head.layer
    own = head.embedding
    head.embedding = nn.Sequential(own)  # wrapped, as by FSDP
    with pytest.raises(TypeError, match="embedding"):
        model(**batch())
    head.embedding = own
    own.weight.device_mesh = object()  # as of a DTensor
    with pytest.raises(RuntimeError, match="sharded"):
        model(**batch())


@pytest.mark.parametrize("version", [1, 2])
def test_head_weight_is_the_embedding_only_until_fsdp2_shards_it(version, monkeypatch):
    """accelerate looks for tied weights before it shards; FSDP1 leaves the head as it is."""
    state = pytest.importorskip("accelerate.state", reason="needs accelerate").AcceleratorState
    head = attach(build("llama"), depth=1).lm_head
    prepared = {"distributed_type": "FSDP", "fsdp_plugin": SimpleNamespace(fsdp_version=version)}
    for name, value in prepared.items():
        monkeypatch.setitem(state._shared_state, name, value)
    assert (head.weight is head.layer.label_weight) is (version == 2)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("family", "options"),
    [("Cohere", {"logit_scale": 0.25}), ("Granite", {"logits_scaling": 1.03})],
)
def test_models_that_scale_their_logits_are_refused(family, options, device):
    with torch.device(device):
        config = getattr(T, f"{family}Config")(**LLAMA, **options)
        model = T.AutoModelForCausalLM.from_config(config)
    with pytest.raises(TypeError, match="logits"):
        attach(model)
    assert type(model.lm_head) is nn.Linear


def test_models_whose_logits_change_without_a_name_in_the_config_are_refused():
    model = build("llama")
    forward = model.forward

    def scaled(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = 1.001 * output.logits
        return output

    model.forward = scaled
    with pytest.raises(TypeError, match="logits"):
        attach(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["gemma", "marian"])
def test_logits_that_are_only_rounded_are_accepted(family, dtype):
    for scale in (0.1, 1.0, 100.0):  # of logits
        model = build(family).to(dtype)
        with torch.no_grad():
            model.get_output_embeddings().weight *= scale
        attach(model, depth=1)
