"""A causal model of transformers as encoder: the contract, and plain transformers as reference."""

import sys

import pytest
import torch
from torch import nn

from drill.errors import SettingsError
from drill.language_modeling.build import dry_run
from drill.language_modeling.untie import untied
from drill.layers import (
    Bilinear,
    DeepResidual,
    DirectOutputConnection,
    FullSoftmax,
    MixtureOfSoftmaxes,
    TiedSoftmax,
)
from drill.models import AwdLstm, HfEncoder
from drill.models.language_model import LanguageModel
from drill.training.optim import Muon
from drill.training.optim.muon import orthogonalized
from drill.training.settings import resolve_settings
from tests.helpers.language_models import (
    OPTIMIZERS,
    V,
    assert_close_rows,
    differences,
    interrupted_after,
    rows,
    run_state,
    small_run,
    train_in_pieces,
    weights,
)
from tests.helpers.processes import two_processes

transformers = pytest.importorskip("transformers")

D, CONTEXT = 16, 12


def encoder(model_type: str = "llama", **options) -> HfEncoder:
    torch.manual_seed(0)
    return HfEncoder(nn.Embedding(V, D), model_type, 2, 2, context_length=CONTEXT, **options)


def model(deep: bool = False, dropout: float = 0.0) -> LanguageModel:
    made = encoder(dropout=dropout)
    layer = DeepResidual(made.embedding, depth=2) if deep else TiedSoftmax(made.embedding)
    return LanguageModel(made, layer)


def some_ids(rows: int = CONTEXT, batch: int = 3) -> torch.Tensor:
    return torch.randint(V, (rows, batch), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3", "gemma2", "opt", "gptj"])
def test_model_types_read_a_window(model_type):
    made = encoder(model_type).eval()
    found = made(some_ids())
    assert found.output.shape == (CONTEXT, 3, D)
    assert found.state == made.initial_state(3) == ()
    names = [name for name, p in made.named_parameters() if p is made.embedding.weight]
    assert names == ["embedding.weight"]
    assert sum(p.shape[0] == V for p in made.parameters()) == 1  # no second embedding
    changed = some_ids()
    changed[5:] = 0
    assert torch.allclose(made(changed).output[:5], found.output[:5], atol=1e-6)  # causal


def test_output_layers_are_the_states_of_the_last_blocks():
    made, ids = encoder(output_layers=2), some_ids()
    assert made.output_widths == (D, D)
    both = made.eval()(ids).output
    assert torch.equal(both[..., D:], encoder().eval()(ids).output)
    lower = made.body(inputs_embeds=made.embed(ids.t()), output_hidden_states=True).hidden_states[1]
    assert torch.equal(both[..., :D], lower.transpose(0, 1))
    part = made(ids[:5], made.reading_state(3))
    read = torch.cat([part.output, made(ids[5:], part.state).output])
    assert torch.allclose(read, both, atol=1e-6)
    tied = TiedSoftmax(made.embedding)
    doc = LanguageModel(made, DirectOutputConnection(tied, [1, 2], made.output_widths))
    doc.loss(ids, ids, **PLAIN).total.backward()
    assert all(p.grad.any() for p in doc.layer.parameters())
    encoder_table = {"name": "hf", "embedding_dim": D, "heads": 2, "layers": 2, "output_layers": 2}
    layer_table = {"name": "doc", "experts": [1, 2]}
    dry_run(resolve_settings({"encoder": encoder_table, "layer": layer_table}))


def test_loss_equals_that_of_transformers():
    mine = model()
    nn.init.zeros_(mine.layer.bias)
    sizes = {"vocab_size": V, "hidden_size": D, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": CONTEXT}
    stock = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, tie_word_embeddings=True)
    )
    stock_weights = dict(mine.encoder.body.state_dict())
    stock_weights["embed_tokens.weight"] = mine.encoder.embedding.weight.detach()
    stock.model.load_state_dict(stock_weights)
    stock.tie_weights()
    ids, targets = some_ids(), some_ids(CONTEXT + 1)[1:]
    loss = mine.loss(ids, targets, ar_weight=0.0, tar_weight=0.0)
    logits = stock(input_ids=ids.t()).logits  # (B, T, V)
    wanted = nn.functional.cross_entropy(logits.flatten(0, 1), targets.t().flatten())
    torch.testing.assert_close(loss.total, wanted)
    loss.total.backward()
    wanted.backward()
    found = dict(mine.encoder.body.named_parameters())
    for name, parameter in stock.model.named_parameters():
        own = found.get(name, mine.encoder.embedding.weight)
        torch.testing.assert_close(own.grad, parameter.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("cuts", "model_type"),
    [([5, 20, 5], "llama"), ([30], "llama")]
    + [([1] * 30, each) for each in ("llama", "gpt2", "qwen3", "gemma2", "opt", "mamba")],
)
def test_reading_state_does_not_depend_on_the_parts(cuts, model_type):
    made, ids = encoder(model_type).eval(), some_ids(30)

    def read(lengths):
        state, found = made.reading_state(3), []
        for part in ids.split(lengths):
            encoded = made(part, state)
            state = encoded.state
            found.append(encoded.output)
        return torch.cat(found)

    found = read(cuts)
    assert torch.allclose(found, read([12, 18]), atol=1e-6)
    assert torch.allclose(found[:CONTEXT], made(ids[:CONTEXT]).output, atol=1e-6)
    # the second window starts in the middle of the first
    half = CONTEXT // 2
    window = made(ids[half : half + CONTEXT]).output[CONTEXT - half :]
    assert torch.allclose(found[CONTEXT : CONTEXT + half], window, atol=1e-6)


def test_reading_caches_keys_and_values():
    made, ids, lengths = encoder().eval(), some_ids(20), []
    made.body.layers[0].register_forward_hook(lambda *call: lengths.append(call[1][0].shape[1]))
    states = [made.reading_state(3)]
    for part in ids.split(1):
        states.append(made(part, states[-1]).state)
    half = CONTEXT // 2  # a full window is read again from its middle
    assert lengths == [1] * CONTEXT + [half + 1] + [1] * (half - 1) + [half + 1, 1]
    once, again = (made(ids[3:4], states[3]).output for _ in range(2))
    assert torch.equal(once, again)  # a state is not changed by reading on from it


def test_dropout_only_in_training():
    made = model(dropout=0.5)
    ids = some_ids()
    assert not torch.equal(made.encoder(ids).output, made.encoder(ids).output)
    with made.without_dropout():
        assert torch.equal(made.encoder(ids).output, made.encoder(ids).output)
    assert made.encoder.training
    assert made.encoder.body.training


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"model_type": "none-such"}, "model_type"),
        ({"heads": 3}, "heads"),
        ({"layers": 0}, "layers"),
        ({"dropout": 1.0}, "dropout"),
        ({"output_layers": 9}, "output_layers"),
    ],
)
def test_invalid_sizes_raise(options, key):
    with pytest.raises(ValueError, match=f"HfEncoder: {key}"):
        HfEncoder(nn.Embedding(V, D), **options)
    with pytest.raises(SettingsError, match=f"encoder.{key}"):
        dry_run(resolve_settings({"encoder": {"name": "hf", "embedding_dim": D, **options}}))


@pytest.mark.parametrize("model_type", ["codegen", "gpt_neo", "t5"])  # codegen: 4 heads at least
def test_model_types_that_do_not_run_raise(model_type):
    with pytest.raises(ValueError, match=f"HfEncoder: model_type .* got '{model_type}'"):
        encoder(model_type)


def test_windows_longer_than_the_context_raise():
    with pytest.raises(ValueError, match="context_length"):
        encoder()(some_ids(CONTEXT + 1))
    for training in ({"bptt": 71}, {"state_reset": 0.1}):
        tables = {"encoder": {"name": "hf", "context_length": 70}, "training": training}
        with pytest.raises(SettingsError, match=next(iter(training))):
            dry_run(resolve_settings(tables))
    with pytest.raises(SettingsError, match="compile"):
        dry_run(resolve_settings({"training": {"compile": True}}))


def test_defaults_follow_the_encoder():
    settings = resolve_settings({"encoder": {"name": "hf"}})
    assert settings.training["ar_weight"] == settings.training["tar_weight"] == 0.0
    assert settings.optimizer["name"] == "adamw"
    assert resolve_settings({}).training["ar_weight"] == 2.0


def test_missing_transformers_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SettingsError, match=r"\[hf\]"):
        dry_run(resolve_settings({"encoder": {"name": "hf"}}))


PLAIN = {"ar_weight": 0.0, "tar_weight": 0.0}


def trained(path, optimizer="adamw", dropout=0.1, **options):
    return small_run(path, optimizer=optimizer, model=model(True, dropout), **PLAIN, **options)


def check_resumed(tmp_path, optimizer="adamw", **options):
    """A run that is interrupted again and again is the run "whole"."""
    starts = train_in_pieces(
        lambda: trained(tmp_path / "parts", interrupted_after(7, optimizer), **options)
    )
    assert starts > 3
    assert differences(run_state(tmp_path / "parts"), run_state(tmp_path / "whole")) == []


@pytest.mark.parametrize("options", [{}, {"micro_batch": 3, "partial_shuffle": True}])
def test_resume_is_bit_exact(tmp_path, options):
    assert trained(tmp_path / "whole", **options).test.perplexity < V
    check_resumed(tmp_path, **options)


def test_windows_have_one_length_and_no_state(tmp_path, calls_of):
    calls = calls_of(HfEncoder, "forward")
    trained(tmp_path, epochs=1)
    with_gradients = [call for call in calls if call.result.output.requires_grad]
    assert {len(call.arguments[1]) for call in with_gradients} == {10}
    assert not any(state for call in calls for state in call.arguments[2:])


@pytest.mark.parametrize("deep", [False, True])
def test_untying_keeps_the_logits(deep):
    made = model(deep)
    hidden = torch.randn(5, D)
    own = untied(made.layer)
    torch.testing.assert_close(own.logits(hidden), made.layer.eval().logits(hidden))
    assert own.label_weight is not made.encoder.embedding.weight
    with pytest.raises(ValueError, match="untie_at"):
        untied(MixtureOfSoftmaxes(made.layer, experts=2))


@pytest.mark.parametrize("name", ["adamw", "late adamw"])
def test_untying_in_the_middle_resumes_bit_exactly(name, tmp_path):
    made = model(True, 0.1)
    optimizer = OPTIMIZERS[name]()
    whole = small_run(tmp_path / "whole", optimizer=optimizer, model=made, untie_at=0.5, **PLAIN)
    assert isinstance(made.layer, FullSoftmax)
    steps = {name: optimizer.optimizer.state[p]["step"] for name, p in made.named_parameters()}
    assert steps["layer.embedding.weight"] == steps["encoder.embedding.weight"] > 1
    assert whole.best_epoch > 1
    check_resumed(tmp_path, name, untie_at=0.5)
    saved = weights(tmp_path / "whole" / "best.safetensors")
    assert not torch.equal(saved["layer.embedding.weight"], saved["encoder.embedding.weight"])


def test_untying_labels_of_another_width_starts_without_optimizer_state(tmp_path):
    embedding = nn.Embedding(V, D)
    made = LanguageModel(AwdLstm(embedding, 9, 1, output_size=9), Bilinear(embedding, 9))
    optimizer = OPTIMIZERS["adamw"]()
    small_run(tmp_path, optimizer=optimizer, model=made, untie_at=0.5)
    steps = [
        optimizer.optimizer.state[p]["step"] for p in (embedding.weight, made.layer.label_weight)
    ]
    assert 1 < steps[1] < steps[0]


def test_muon_steps_matrices_and_adamw_the_rest(tmp_path):
    made = model(deep=True)
    optimizer = Muon(0.01)
    optimizer.setup(made.named_parameters())
    (group,) = optimizer.optimizer.optimizers[0].param_groups
    assert {id(p) for p in group["params"]} == {
        id(p) for p in made.parameters() if p.dim() == 2 and p is not made.encoder.embedding.weight
    }
    for shape in ((4, 7), (7, 4)):
        values = torch.linalg.svdvals(orthogonalized(torch.randn(shape)))
        assert values.min() > 0.6
        assert values.max() < 1.3

    whole = trained(tmp_path / "whole", Muon(0.01))
    assert whole.test.perplexity < V
    check_resumed(tmp_path, Muon(0.01))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "optimizer", "options"),
    [
        ("ddp", "adamw", {"untie_at": 0.5}),
        ("fsdp", "adamw maps", {"validate_first": True}),
        ("fsdp compile", "adamw", {"validate_first": True, "epochs": 1}),
        ("fsdp muon", Muon(0.01), {"validate_first": True}),
    ],
)
def test_two_processes_train_what_one_does(tmp_path, kind, optimizer, options):
    two_processes("-m", "tests.models.train_hf_in_processes", tmp_path / "two", kind)
    trained(tmp_path / "one", optimizer, dropout=0.0, **options)
    assert_close_rows(tmp_path / "two", tmp_path / "one", rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": {"name": "awd-lstm"}},
        {"training": {"untie_at": 0.5}},
        {"training": {"micro_batch": 1}},
        {"optimizer": {"name": "sgd"}},
        {"optimizer": {"name": "adamw", "average_from": 0.5}},
    ],
)
def test_what_fsdp_cannot_do_raises(changes):
    tables = {"encoder": {"name": "hf"}, "optimizer": {"name": "adamw"}, **changes}
    tables["training"] = {"fsdp": True, "bptt": 70, **changes.get("training", {})}
    with pytest.raises(SettingsError, match=r"\[training\]: fsdp"):
        dry_run(resolve_settings(tables))


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"optimizer": {"name": "nt-asgd"}}, "optimizer.name"),
        ({"optimizer": {"name": "sgd", "average_from": 0.4}}, "average_from"),
        (
            {"optimizer": {"name": "sgd", "average_from": 0.6, "average_patience": 2}},
            "average_patience",
        ),
        ({"optimizer": {"name": "sgd"}, "layer": {"name": "full"}}, "FullSoftmax"),
    ],
)
def test_what_cannot_untie_raises(tables, key):
    with pytest.raises(SettingsError, match=rf"\[training\]: untie_at .*{key}"):
        dry_run(resolve_settings({"training": {"untie_at": 0.5}, **tables}))


@pytest.mark.parametrize(
    ("tables", "start"),
    [
        ({"layer": {"bias": False}}, {"unigram_bias": True}),
        ({"labels": {"source": "characters"}}, {"unigram_norms": 0.2}),
    ],
)
def test_what_cannot_start_from_frequencies_raises(tables, start):
    with pytest.raises(SettingsError, match=next(iter(start))):
        dry_run(resolve_settings({"training": start, **tables}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_training_gives_the_same_losses(tmp_path):
    trained(tmp_path / "plain", epochs=1, dropout=0.0)
    trained(tmp_path / "compiled", epochs=1, dropout=0.0, compile=True)
    losses = [rows(tmp_path / each)[0]["valid_loss"] for each in ("plain", "compiled")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
