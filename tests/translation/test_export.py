"""An exported folder in the stock library: the same probabilities and the same translations."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from drill.data import BEGIN, END, PAD, DataError, Subwords
from drill.files import WriteError, atomic_write
from drill.layers import (
    Bilinear,
    DeepResidual,
    DualNonlinear,
    FullSoftmax,
    MixtureOfSoftmaxes,
    NotFoldable,
    SampledSoftmax,
    TiedSoftmax,
)
from drill.models import Transformer
from drill.models.translator import Translator
from drill.translation import Search, beam_search
from drill.translation.export import NotExportable, export_translator
from tests.helpers.files import contents

transformers = pytest.importorskip("transformers", reason="the exported folder is for transformers")

pytestmark = pytest.mark.usefixtures("fixed_seed")
d, WORDS = 16, 40


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return Subwords.train(["der Hund schläft", "the dog sleeps"] * 3, size=280)


def make(subwords: Subwords, layer, norm: str = "post", shared: bool = True) -> Translator:
    """No parameter at zero, so that each of them counts."""
    source, target = nn.Embedding(len(subwords), d), nn.Embedding(len(subwords), d)
    target = source if shared else target
    sizes = {"layers": 2, "heads": 4, "feedforward": 24}
    transformer = Transformer(source, target, norm=norm, dropout=0.1, **sizes)
    model = Translator(transformer, layer(target))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5)
    return model.eval()


def load(folder) -> nn.Module:
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def log_probs(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    found = model(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target)
    return found.logits.log_softmax(-1)


SOURCE = torch.tensor([[7, 30, 9, END], [8, END, PAD, PAD]])
TARGET = torch.tensor([[BEGIN, 5, 99], [BEGIN, 44, 8]])


EXPORTED_LAYERS = {
    "tied": TiedSoftmax,
    "tied without bias": lambda e: TiedSoftmax(e, bias=False),
    "full": lambda e: FullSoftmax(len(e.weight), d),
    "bilinear": Bilinear,
    "deep residual": lambda e: DeepResidual(e, depth=2),
    "sampled": lambda e: SampledSoftmax(DeepResidual(e, depth=1), 20),
}


@pytest.mark.parametrize(
    ("name", "norm", "shared"),
    [
        *((name, "post", True) for name in EXPORTED_LAYERS),
        ("deep residual", "pre", True),
        ("deep residual", "post", False),
    ],
)
def test_probabilities_are_the_same(subwords, name, norm, shared, tmp_path):
    model = make(subwords, EXPORTED_LAYERS[name], norm, shared)
    theirs = load(export_translator(model, subwords, tmp_path, max_length=16))
    kind = "MarianMTModel" if norm == "post" else "PegasusForConditionalGeneration"
    assert type(theirs).__name__ == kind
    with torch.no_grad():
        ours = model.log_probs(SOURCE, TARGET)
        torch.testing.assert_close(log_probs(theirs, SOURCE, TARGET), ours, atol=1e-5, rtol=1e-5)


def test_tied_matrix_is_written_once(subwords, tmp_path):
    export_translator(make(subwords, TiedSoftmax), subwords, tmp_path, max_length=16)
    tensors = load_file(tmp_path / "model.safetensors")
    rows = [name for name, each in tensors.items() if each.shape == (len(subwords), d)]
    assert rows == ["model.shared.weight"]
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True


def reversing(subwords: Subwords, norm: str) -> Translator:
    """A model that has begun to learn to turn its source round, so it is sure of little."""
    embedding = nn.Embedding(len(subwords), 2 * d)
    nn.init.normal_(embedding.weight, std=0.18)
    transformer = Transformer(embedding, layers=1, heads=4, feedforward=64, norm=norm, dropout=0.0)
    model = Translator(transformer, DeepResidual(embedding, depth=2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    begin, end = torch.full((32, 1), BEGIN), torch.full((32, 1), END)
    for _ in range(120):
        x = torch.randint(3, WORDS, (32, int(torch.randint(2, 7, ()))))
        y = x.flip(1)
        rows = torch.cat([x, end], 1), torch.cat([begin, y], 1), torch.cat([y, end], 1)
        model.loss(*rows).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("norm", ["post", pytest.param("pre", marks=pytest.mark.slow)])
def test_translations_are_the_same(subwords, norm, tmp_path):
    model = reversing(subwords, norm)
    theirs = load(export_translator(model, subwords, tmp_path, max_length=32))
    sources = [
        [*torch.randint(3, WORDS, (n,)).tolist(), END] for n in (1, 2, 3, 4, 5, 6) for _ in range(3)
    ]
    ids = nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], True, PAD)
    for beam in (1, 4):
        search = Search(beam_size=beam, length_penalty=0.0, max_ratio=0.0, max_extra=20)
        ours = beam_search(model, sources, search)
        written = theirs.generate(
            input_ids=ids,
            attention_mask=(ids != PAD).long(),
            num_beams=beam,
            length_penalty=0.0,
            max_length=21,
        ).tolist()
        found = [tuple(row[1 : row.index(END)]) for row in written]
        assert found == [best.ids for best, *_ in ours]
        assert len(set(found)) > 12


def test_tokenizer_is_the_same(subwords, tmp_path):
    export_translator(make(subwords, TiedSoftmax), subwords, tmp_path, max_length=16)
    lines = ["der Hund schläft", "", "<end> is a word <pad>", "Grüße, 世界 🎉", " two  spaces "]
    for kind in (transformers.PreTrainedTokenizerFast, transformers.AutoTokenizer):
        theirs = kind.from_pretrained(tmp_path)
        found = theirs(lines, padding=True, return_tensors="pt")
        for line, ids, mask in zip(lines, found.input_ids, found.attention_mask, strict=True):
            assert ids[mask == 1].tolist() == [*subwords.encode(line), END]
            assert (ids[mask == 0] == PAD).all()
            assert theirs.decode(ids, skip_special_tokens=True) == line


def test_search_of_the_copy_has_its_options_and_writes_no_special_ids(subwords, tmp_path):
    model = make(subwords, DeepResidual)
    folder = export_translator(
        model, subwords, tmp_path, max_length=16, beam_size=2, length_penalty=1.5
    )
    theirs = load(folder)
    search = theirs.generation_config
    assert (search.num_beams, search.length_penalty, search.max_length) == (2, 1.5, 16)
    written = theirs.generate(input_ids=SOURCE, attention_mask=(SOURCE != PAD).long())
    for row in written.tolist():
        text = row[1 : row.index(END)]
        assert row[0] == BEGIN
        assert not {PAD, BEGIN} & set(text)
        assert len(row) <= 16


@pytest.mark.parametrize(
    ("layer", "norm", "shared", "error"),
    [
        (lambda e: MixtureOfSoftmaxes(TiedSoftmax(e), experts=2), "post", True, NotFoldable),
        (DualNonlinear, "post", True, NotExportable),
        (TiedSoftmax, "pre", False, NotExportable),
    ],
)
def test_models_that_cannot_be_exported_raise(subwords, layer, norm, shared, error, tmp_path):
    with pytest.raises(error, match="export_translator"):
        export_translator(make(subwords, layer, norm, shared), subwords, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_killed_export_leaves_nothing_that_loads(subwords, tmp_path, monkeypatch):
    def killed(path, content):
        if path.name == "tokenizer.json":
            raise KeyboardInterrupt
        atomic_write(path, content)

    monkeypatch.setattr("drill.translation.export.atomic_write", killed)
    with pytest.raises(KeyboardInterrupt):
        export_translator(make(subwords, TiedSoftmax), subwords, tmp_path, max_length=16)
    assert not (tmp_path / "model.safetensors").exists()


def test_folder_with_files_raises_and_stays_as_it_is(subwords, tmp_path):
    model = make(subwords, TiedSoftmax)
    export_translator(model, subwords, tmp_path, max_length=8)
    before = contents(tmp_path)
    with pytest.raises(DataError, match="is not empty"):
        export_translator(model, subwords, tmp_path, max_length=16)
    assert contents(tmp_path) == before


def test_other_subwords_and_a_file_in_the_way_raise(subwords, tmp_path):
    model = make(subwords, TiedSoftmax)
    other = Subwords.train(["a"], size=259)
    with pytest.raises(DataError, match="259 subwords"):
        export_translator(model, other, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        export_translator(model, subwords, tmp_path / "file")
