"""Checkpoints: exact, whole or not at all, and any damage is found and named."""

import json
import math
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from drill.errors import CheckpointError
from drill.files import WriteError
from drill.layers import DeepResidual
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from drill.training.run import checkpoint
from drill.training.run.checkpoint import load, load_into, save
from tests.helpers.files import disk_full
from tests.helpers.language_models import bits

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip

NUMBERS = {
    "third": 1 / 3, "smallest": 5e-324, "rate": 1.2e-6, "large": 2**63 + 1, "nothing": None,
    "no": False, "unlimited": math.inf, "lists": [[], [1, 2.5, "three"]],
    "words": "Größe \U0001f600",
}  # fmt: skip


def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "c.safetensors"


# -- round trip -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((dtype, (5, 3)) for dtype in DTYPES)]
    + [(torch.float32, shape) for shape in ((), (0,), (3, 0, 2), (1,))],
    ids=str,
)
def test_tensors_come_back_bit_for_bit(path, dtype, shape):
    tensor = random(shape, dtype)
    save(path, {"a": tensor}, {})
    tensors, _ = load(path)
    assert tensors.keys() == {"a"}
    assert (tensors["a"].dtype, tensors["a"].shape) == (dtype, shape)
    assert bits(tensors["a"]) == bits(tensor)


def test_views_and_parameters_are_saved_as_what_they_show(path):
    whole = torch.arange(24.0).reshape(4, 6)
    parts = {"turned": whole.t(), "every other": whole[::2], "one": nn.Parameter(whole[1].clone())}
    save(path, parts, {})
    tensors, _ = load(path)
    assert all(torch.equal(tensors[name], part) for name, part in parts.items())
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_numbers_come_back_exactly(path):
    save(path, {}, NUMBERS)
    tensors, numbers = load(path)
    assert tensors == {}
    assert numbers == NUMBERS
    assert numbers["no"] is False


def test_equal_content_makes_equal_files_that_the_library_reads(tmp_path):
    """Metadata in a table drawn for every file would differ in half of them."""
    tensors = {"b": random((3, 5), torch.float32), "ä": random((2,), torch.bfloat16)}
    files = [tmp_path / f"{number}.safetensors" for number in range(12)]
    for number, path in enumerate(files):
        order = sorted(tensors, reverse=bool(number % 2))
        save(path, {name: tensors[name] for name in order}, NUMBERS)
    assert len({path.read_bytes() for path in files}) == 1
    read = safetensors.torch.load_file(files[0])
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("place", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_checkpoint_and_nothing_else(path, monkeypatch, place):
    save(path, {"a": torch.ones(1000)}, {"step": 1})
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, place, disk_full)
        with pytest.raises(WriteError, match="No space left on device") as caught:
            save(path, {"a": torch.zeros(10**6)}, {"step": 2})
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]
    assert load(path)[1] == {"step": 1}


# -- damage ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "c.safetensors"
    tensors = {"model/weight": random((2, 3), torch.float32), "optimizer/step": torch.tensor(7)}
    save(path, tensors, {"epoch": 12, "rate": 0.25, "lengths": [4, 5]})
    return path.read_bytes()


def assert_refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_file_cut_anywhere_is_refused(path, sound):
    for size in range(len(sound)):
        assert_refused(path, sound[:size])
    assert_refused(path, sound + b"\0")


def test_every_changed_byte_is_noticed(path, sound):
    blank = {place for place, byte in enumerate(sound) if byte == ord(" ")}
    for place in set(range(len(sound))) - blank:
        content = bytearray(sound)
        content[place] ^= 1 + place % 255
        assert_refused(path, bytes(content))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'\\"epoch\\": 12', b'\\"epoch\\": 13'),
        (b'"dtype":"F32"', b'"dtype":"I32"'),
        (b'"shape":[2,3]', b'"shape":[3,2]'),
        (b'"model/weight"', b'"model/weighs"'),
    ],
    ids=["number", "dtype", "shape", "name"],
)
def test_a_header_that_reads_well_but_says_something_else_is_refused(path, sound, old, new):
    assert sound.count(old) == 1
    assert "damaged" in assert_refused(path, sound.replace(old, new))


def test_another_format_asks_for_the_version_that_wrote_it(path):
    note = json.dumps({"format": 1, "checksums": {}, "numbers": {}})
    content = safetensors.torch.save({}, {"drill": note})
    assert "has format 1" in assert_refused(path, content)


def test_a_missing_checkpoint_is_named(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match="there is no such checkpoint; train first"):
            load(path)


# -- into a model ---------------------------------------------------------------------------------


def model(seed: int, depth: int = 2, words: int = 30) -> LanguageModel:
    torch.manual_seed(seed)
    embedding = nn.Embedding(words, 8)
    return LanguageModel(
        AwdLstm(embedding, 9, 2, init_range=0.1), DeepResidual(embedding, depth=depth)
    )


def test_values_go_into_the_storages_there_are(path):
    first, second = model(1), model(2)
    save(path, dict(first.named_parameters()), {"epoch": 3})
    parameters = list(second.parameters())
    places = [p.data_ptr() for p in parameters]
    assert load_into(second, path) == {"epoch": 3}
    assert all(a is b for a, b in zip(second.parameters(), parameters, strict=True))
    assert [p.data_ptr() for p in second.parameters()] == places
    assert second.layer.label_weight is second.encoder.embedding.weight
    for mine, theirs in zip(second.parameters(), first.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.requires_grad


@pytest.mark.parametrize(
    ("saved", "loaded", "fault"),
    [
        ({"depth": 1}, {}, r"does not fit the model \(.*layer\."),
        ({}, {"depth": 1}, r"does not fit the model \(.*layer\."),
        ({"words": 31}, {}, r"does not fit the model \(.*embedding\.weight"),
    ],
)
def test_weights_of_another_model_are_named_and_nothing_is_copied(path, saved, loaded, fault):
    save(path, dict(model(1, **saved).named_parameters()), {})
    other = model(2, **loaded)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(CheckpointError, match=fault) as caught:
        load_into(other, path)
    assert str(path) in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), before, strict=True))


def test_numbers_are_read_without_the_tensors_and_checked(path):
    save(path, {"w": torch.ones(8)}, {"epoch": 3})
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")  # a tensor's byte, which nobody reads here
    assert checkpoint.load_numbers(path) == {"epoch": 3}
    path.write_bytes(content.replace(b'\\"epoch\\": 3', b'\\"epoch\\": 4'))
    with pytest.raises(CheckpointError, match="wrong checksum of its numbers"):
        checkpoint.load_numbers(path)
    path.unlink()
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        checkpoint.load_numbers(path)
