"""``DeepResidual(apply_to=...)``: the label encoder on the input side of a model."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.language_modeling.untie import untied
from drill.layers import (
    AdaptiveSoftmax,
    DeepResidual,
    MixtureOfSoftmaxes,
    SampledSoftmax,
    TiedSoftmax,
)
from drill.models import AwdLstm, HfEncoder, RecurrentHighway, Transformer
from drill.models.language_model import LanguageModel
from drill.models.translator import Translator
from drill.translation import Decoding, beam_search

V, D, T, B = 17, 8, 5, 4
OFF = {"dropout_embedding": 0.0, "dropout_input": 0.0, "dropout_output": 0.0}
ENCODERS = {
    "lstm": partial(AwdLstm, hidden_size=6, layers=2, dropout_hidden=0.0, weight_drop=0.0, **OFF),
    "rhn": partial(RecurrentHighway, hidden_size=D, depth=2, dropout_state=0.0, **OFF),
    "hf": partial(HfEncoder, layers=1, heads=2, context_length=T),
}
MODELS = [*ENCODERS, "translator", "two embeddings"]
both_sides = pytest.mark.parametrize("side", ["input", "both"])


class Model(nn.Module):
    """A language model or a translator with the same call."""

    def __init__(self, name: str, layer) -> None:
        super().__init__()
        if name == "hf":
            pytest.importorskip("transformers")
        torch.manual_seed(0)
        E, other = nn.Embedding(V, D), nn.Embedding(V, D)
        nn.init.normal_(E.weight, std=0.3)
        ids = torch.randint(1, V, (3, T, B), generator=torch.Generator().manual_seed(1))
        self.ids, self.targets = ids[1], ids[2]
        if name in ENCODERS:
            self.model = LanguageModel(ENCODERS[name](E), layer(E))
            self.call = partial(self.model.loss, self.ids, self.targets, tar_weight=0.0)
        else:
            source = E if name == "translator" else other
            sizes = {"layers": 1, "heads": 2, "feedforward": 8, "dropout": 0.0}
            self.model = Translator(Transformer(source, E, **sizes), layer(E))
            self.call = partial(self.model.loss, ids[0], ids[1], ids[2], label_smoothing=0.0)

    def forward(self) -> Tensor:
        loss = self.call(check=False)
        return loss if isinstance(loss, Tensor) else loss.total


def deep(side: str, **options):
    return lambda E: DeepResidual(E, **{"depth": 2, "apply_to": side, **options})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["output", "input", "both"])
@pytest.mark.parametrize(
    "start",
    [{"activation": "tanh", "zero_start": True}, {"gate": "label"}, {"depth": 0, "correction": 2}],
)
def test_zero_start_is_exactly_tied(name, side, start):
    tied, model = Model(name, TiedSoftmax), Model(name, deep(side, **start))
    assert torch.equal(tied(), model())


@pytest.mark.parametrize("name", [name for name in MODELS if name != "hf"])  # norms in float32
@both_sides
def test_gradients_agree_with_finite_differences(name, side):
    model = Model(name, deep(side)).double()
    layer = model.model.layer
    leaves = [layer.embedding.weight, *layer.maps[0].parameters()]
    assert torch.autograd.gradcheck(lambda *_: model(), leaves, fast_mode=True)


@both_sides
def test_input_words_are_encoded_rows(side):
    model = Model("lstm", deep(side)).model.double()
    ids, layer = torch.tensor([[3], [1]]), model.layer
    E, rows = layer.embedding.weight, F.embedding(ids, layer.input_weight)
    assert not torch.equal(layer.input_weight, E)
    assert torch.equal(model.encoder.embed(ids), rows)
    assert (layer.weight is E) == (side == "input")
    hidden = model.encoder(ids).output
    model.encoder.embed_with = None
    with torch.no_grad():
        E.copy_(layer.input_weight)
    torch.testing.assert_close(model.encoder(ids).output, hidden)


WRAPPERS = {
    "none": lambda layer: layer,
    "mixture": lambda layer: MixtureOfSoftmaxes(layer, experts=2),
    "sampled": lambda layer: SampledSoftmax(layer, samples=4),
    "adaptive": lambda layer: AdaptiveSoftmax(layer, [5]),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", ["lstm", "translator"])
@both_sides
def test_a_step_encodes_once(name, side, wrapper, monkeypatch):
    calls = []
    encoded = DeepResidual._encoded

    def counted(self, *arguments):
        calls.append(arguments)
        return encoded(self, *arguments)

    monkeypatch.setattr(DeepResidual, "_encoded", counted)
    model = Model(name, lambda E: WRAPPERS[wrapper](deep(side, dropout=0.5)(E)))
    model().backward()
    assert calls == [()]
    maps = [p for key, p in model.named_parameters() if "maps" in key]
    assert all(p.grad.any() for p in maps)
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(), model())
    assert len(calls) == 2  # cached while no parameter changes


@both_sides
def test_micro_batches_have_the_gradients_of_the_batch(side):
    whole, parts = (Model("lstm", deep(side)).double() for _ in range(2))
    whole().backward()
    with parts.model.layer.shared_labels():
        for i in range(B):
            own = slice(i, i + 1)
            loss = parts.model.loss(parts.ids[:, own], parts.targets[:, own], tar_weight=0.0)
            (loss.total / B).backward()
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@both_sides
def test_search_embeds_as_the_loss_does(side):
    model = Model("translator", deep(side)).model.eval()
    (found,) = beam_search(model, [[4, 5, 2]], Decoding(1, 2, max_extra=3), beam_size=2)
    ids = torch.tensor([[1, *found[0].ids]])
    with torch.no_grad():
        log_p = model.log_probs(torch.tensor([[4, 5, 2]]), ids)[0]
    total = sum(log_p[i, y] for i, y in enumerate([*found[0].ids, 2]))
    assert found[0].log_prob == pytest.approx(float(total), abs=1e-4)


def test_what_cannot_encode_inputs_raises():
    E = nn.Embedding(V, D)
    with pytest.raises(ValueError, match="apply_to"):
        DeepResidual(E, apply_to="labels")
    with pytest.raises(ValueError, match="hidden_size"):
        DeepResidual(E, 5, residual=False, apply_to="both")
    layer = DeepResidual(E, apply_to="both")
    with pytest.raises(ValueError, match="apply_to"):
        LanguageModel(ENCODERS["lstm"](nn.Embedding(V, D)), layer)
    with pytest.raises(ValueError, match="untie_at"):
        untied(layer)
