"""From `drill train` over `drill export` to translations by the stock library."""

import json

import pytest

from drill.tasks import train
from tests.tiny_translation_place import small, write_pairs

transformers = pytest.importorskip("transformers", reason="the exported folder is for transformers")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with pairs and the run post."""
    folder = tmp_path_factory.mktemp("place")
    write_pairs(folder / "pairs")
    changes = ("encoder.norm=post", "encoder.embedding_dim=16", "training.epochs=10")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        train(small(*changes, "training.length_penalty=0"), "runs/post", device="cpu")
    return folder


def test_a_run_translates_as_its_marian_copy_does(drill, place, tmp_path):
    code, out, err = drill("export", "runs/post", str(tmp_path / "marian"), "--positions", "128")
    assert code == 0, err
    assert "a Marian model" in out
    search = ("--beam", "2", "--length-penalty", "0", "--device", "cpu")
    ours = drill("translate", "runs/post", "pairs/test.en", *search)[1].splitlines()

    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "marian")
    config = json.loads((tmp_path / "marian/config.json").read_text())
    assert not config["tie_word_embeddings"]  # the deep residual layer, folded
    found = []
    for line in (place / "pairs/test.en").read_text().splitlines():
        batch = tokenizer([line], return_tensors="pt")
        end = 1 + batch.input_ids.shape[1] + 50  # with the begin of ours
        written = theirs.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            num_beams=2,
            max_length=end,
        )
        found += tokenizer.batch_decode(written, skip_special_tokens=True)
    assert found == ours
    assert len(set(found)) > 3


def test_a_copy_searches_as_the_run_was_tested(drill, tmp_path):
    changes = ("training.max_steps=2", "training.beam=3", "training.length_penalty=1.25")
    train(small(*changes), tmp_path / "own", device="cpu")
    assert drill("export", str(tmp_path / "own"), str(tmp_path / "copy"))[0] == 0
    config = json.loads((tmp_path / "copy/generation_config.json").read_text())
    assert (config["num_beams"], config["length_penalty"]) == (3, 1.25)
