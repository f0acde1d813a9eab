"""The Trainer of transformers with an attached layer, and what people use with it."""

import pytest
import torch
import torch.nn.functional as F

from drill.hf.attached_head import AttachedHead
from tests.hf.tiny_models import T, auto, batch, build, logits, perturb

from drill.hf import attach, fold  # isort: skip  (after the check for transformers)

pytest.importorskip("accelerate", reason="needs accelerate")

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")

STEPS = 4


def examples(count=16):
    """Sequences of 8 ids; the first labels of each are ignored, of some more than of others."""
    ids = torch.randint(3, 90, (count, 8), generator=torch.Generator().manual_seed(3))
    labels = [row.where(torch.arange(8) >= i % 5, -100) for i, row in enumerate(ids)]
    return [{"input_ids": x, "labels": y} for x, y in zip(ids, labels, strict=True)]


def train(folder, model, resume=None, data=None, **options):
    options = {
        "max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 0.01,
        "lr_scheduler_type": "constant", "optim": "sgd", "seed": 1, "use_cpu": True,
        "report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1,
    } | options  # fmt: skip
    arguments = T.TrainingArguments(output_dir=str(folder), **options)
    data = data or examples()
    trainer = T.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def fresh(family="llama", **options):
    return perturb(attach(build(family), depth=2, **options)).train()


def assert_same(model, other):
    for name, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, msg=name)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain"), fresh())


def test_it_trains_like_a_loop_with_cross_entropy_of_the_logits(tmp_path):
    options = {"optim": "adamw_torch", "max_grad_norm": 0.0, "per_device_train_batch_size": 16}
    trainer = train(tmp_path, fresh(), **options)
    model, inputs = fresh(), trainer.data_collator(examples())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    expected = []
    for _ in range(STEPS):
        scores = model(inputs["input_ids"]).logits[:, :-1]
        loss = F.cross_entropy(scores.flatten(0, 1), inputs["labels"][:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses(trainer) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_gradient_accumulation_divides_by_the_tokens_of_the_whole_batch(family, tmp_path):
    whole = train(tmp_path / "1", fresh(family))
    parts = train(
        tmp_path / "2", fresh(family), per_device_train_batch_size=1, gradient_accumulation_steps=4
    )
    assert_same(whole.model, parts.model)
    assert losses(whole) == pytest.approx(losses(parts), abs=1e-3)


@pytest.mark.parametrize("family", ["llama", "marian"])
def test_label_smoothing_of_the_layer_is_that_of_the_trainer(family, tmp_path):
    data = examples()
    if family == "marian":  # as DataCollatorForSeq2Seq does: the Trainer takes the labels away
        for row in data:
            shifted = build(family).prepare_decoder_input_ids_from_labels(row["labels"][None])
            row["decoder_input_ids"] = shifted[0]
    layer = train(tmp_path / "1", fresh(family, label_smoothing=0.2), data=data)
    trainer = train(tmp_path / "2", fresh(family), data=data, label_smoothing_factor=0.2)
    assert losses(layer) == pytest.approx(losses(trainer), abs=1e-3)
    assert_same(layer.model, trainer.model)


def test_gradient_checkpointing_changes_nothing(plain, tmp_path):
    assert_same(plain.model, train(tmp_path, fresh(), gradient_checkpointing=True).model)


def test_resumed_it_goes_on_where_it_stopped(plain, tmp_path):
    train(tmp_path, fresh(), max_steps=2, save_strategy="steps", save_steps=2)
    resumed = train(tmp_path, fresh(), resume=str(tmp_path / "checkpoint-2"))
    assert_same(plain.model, resumed.model)
    again = T.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    assert isinstance(again.lm_head, AttachedHead)


def test_evaluation_has_the_loss_and_the_logits(plain):
    with torch.no_grad():
        expected = [plain.model.eval()(**plain.data_collator(examples())).loss.item()]
    assert plain.evaluate()["eval_loss"] == pytest.approx(expected[0], rel=0.05)
    assert plain.predict(examples(4)).predictions.shape[-1] == 99


def test_bfloat16(plain, tmp_path):
    trainer = train(tmp_path, fresh(), bf16=True)
    assert losses(trainer) == pytest.approx(losses(plain), rel=0.02)
    model = fresh().to(torch.bfloat16)
    loss = model(**batch()).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(fresh()(**batch()).loss.item(), rel=0.02)


@pytest.mark.slow
def test_torch_compile_in_the_trainer(plain, tmp_path):
    options = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    trainer = train(tmp_path, fresh(), **options)
    assert losses(trainer) == pytest.approx(losses(plain), abs=2e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo
@pytest.mark.parametrize("family", ["llama", "gemma", "marian"])
def test_torch_compile(family):
    torch._dynamo.reset()
    model = fresh(family)
    expected = model(**batch()).loss
    compiled = torch.compile(model, backend="aot_eager", fullgraph=family != "marian")
    loss = compiled(**batch()).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None for p in model.lm_head.parameters())


@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied:UserWarning")
def test_lora_with_the_head_in_modules_to_save(tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft")
    base = fresh()
    base.save_pretrained(tmp_path / "base")
    options = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "r": 2}
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    maps = model.base_model.model.lm_head.modules_to_save.default.layer.maps
    before = maps[0].linear.weight.clone()
    train(tmp_path, model)
    assert not torch.equal(maps[0].linear.weight, before)
    expected = logits(model)
    model.save_pretrained(tmp_path / "adapter")
    stock = auto(base.config).from_pretrained(tmp_path / "base")
    again = peft.PeftModel.from_pretrained(stock, tmp_path / "adapter")
    torch.testing.assert_close(logits(again), expected)
    merged = again.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # of PEFT
@pytest.mark.parametrize("saved", [["embed_tokens"], ["embed_tokens", "lm_head"]])
def test_lora_with_the_shared_embedding_raises(saved):
    peft = pytest.importorskip("peft", reason="needs peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", modules_to_save=saved, r=2)
    model = peft.get_peft_model(fresh(), config)
    with pytest.raises(TypeError, match="modules_to_save"):
        model(**batch())


def test_attach_comes_before_peft_and_fold_after_it():
    peft = pytest.importorskip("peft", reason="needs peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    with pytest.raises(TypeError, match="attach first"):
        attach(peft.get_peft_model(build("llama"), config))
    model = peft.get_peft_model(fresh(), config)
    for each in (model, model.get_base_model()):
        with pytest.raises(TypeError, match="merge_and_unload"):
            fold(each)
