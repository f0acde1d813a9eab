"""From `drill train` over `drill export` to translations by the stock library."""

import json

import pytest

from tests.tiny_place import typed
from tests.tiny_translation_place import set_by_command, write_pairs

transformers = pytest.importorskip("transformers", reason="the exported folder is for transformers")


@pytest.fixture
def drill(tmp_path, monkeypatch, capfd):
    write_pairs(tmp_path / "pairs")
    run = typed(tmp_path, monkeypatch, capfd)

    def successful(*words: str) -> str:
        code, out, err = run(*words)
        assert code == 0, err
        return out

    return successful


@pytest.mark.parametrize("beam", [1, 2])
def test_a_run_translates_as_its_marian_copy_does(drill, tmp_path, beam):
    changes = set_by_command(
        "encoder.norm=post",
        "encoder.embedding_dim=16",
        "training.epochs=10",
        "training.length_penalty=0",
    )
    drill("train", "mt-demo", "--name", "post", *changes, "--device", "cpu", "-q")
    assert "a Marian model" in drill("export", "runs/post", "marian", "--positions", "128")
    search = ("--beam", str(beam), "--length-penalty", "0", "--device", "cpu")
    ours = drill("translate", "runs/post", "pairs/test.en", *search).splitlines()

    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "marian")
    config = json.loads((tmp_path / "marian/config.json").read_text())
    assert not config["tie_word_embeddings"]  # the deep residual layer, folded
    found = []
    for line in (tmp_path / "pairs/test.en").read_text().splitlines():
        batch = tokenizer([line], return_tensors="pt")
        end = 1 + batch.input_ids.shape[1] + 50  # with the begin of ours
        written = theirs.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            num_beams=beam,
            max_length=end,
        )
        found += tokenizer.batch_decode(written, skip_special_tokens=True)
    assert found == ours
    assert len(set(found)) > 3


def test_a_copy_searches_as_the_run_was_tested(drill, tmp_path):
    changes = ("training.max_steps=2", "training.beam=3", "training.length_penalty=1.25")
    drill("train", "mt-demo", "--name", "own", *set_by_command(*changes), "--device", "cpu", "-q")
    drill("export", "runs/own", "copy")
    held = json.loads((tmp_path / "copy/generation_config.json").read_text())
    assert (held["num_beams"], held["length_penalty"]) == (3, 1.25)
