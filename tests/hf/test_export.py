"""Exported models, read in a process that has no drill: their logits and translations."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from tests.helpers.processes import python
from tests.hf.tiny_models import T, V, batch, build, logits, perturb

from drill.hf import attach, fold  # isort: skip  (after the check for transformers)

IDS = batch()["input_ids"]


def without_drill(program, *arguments):
    """Run a program in a process in which `import drill` fails."""
    program = "import sys\nsys.modules['drill'] = None\n" + program
    python("-c", program, *arguments)


STOCK = """
import torch, transformers
auto = getattr(transformers, sys.argv[1])
model = auto.from_pretrained(sys.argv[2]).eval()
batch = torch.load(sys.argv[2] + "/batch.pt")
with torch.no_grad():
    torch.save(model(**batch).logits, sys.argv[2] + "/logits.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gemma", "t5", "marian"])
def test_folded_it_is_read_by_transformers_alone(family, tmp_path):
    model = perturb(attach(build(family), depth=2))
    expected = logits(model)
    fold(model).save_pretrained(tmp_path)
    torch.save(batch(), tmp_path / "batch.pt")
    seq2seq = model.config.is_encoder_decoder
    auto = "AutoModelForSeq2SeqLM" if seq2seq else "AutoModelForCausalLM"
    without_drill(STOCK, auto, tmp_path)
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected)


class Logits(nn.Module):
    """ids (N, T) -> logits (N, T, V)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


ONNX = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx")
(logits,) = session.run(None, {"input_ids": numpy.load(sys.argv[1] + "/ids.npy")})
numpy.save(sys.argv[1] + "/logits.npy", logits)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of onnxscript
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the exporter, about its own passes
@pytest.mark.parametrize("layer", ["deep-residual", "dual"])
def test_onnxruntime(layer, tmp_path):
    """Folded where the layer folds; as it is where it does not."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"needs {package}")
    model = perturb(attach(build("llama"), layer, zero_start=layer == "deep-residual")).eval()
    expected = logits(model)
    exported = fold(model) if layer == "deep-residual" else model
    shapes = {"input_ids": {0: torch.export.Dim("n", max=64), 1: torch.export.Dim("t", max=64)}}
    with torch.no_grad():
        torch.onnx.export(
            Logits(exported).eval(),
            (IDS[:, :4],),
            tmp_path / "model.onnx",
            input_names=["input_ids"],
            dynamic_shapes=shapes,
            dynamo=True,
        )
    np.save(tmp_path / "ids.npy", IDS.numpy())
    without_drill(ONNX, tmp_path)
    got = torch.from_numpy(np.load(tmp_path / "logits.npy"))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


CTRANSLATE2 = """
import ctranslate2, json, pathlib
folder = pathlib.Path(sys.argv[1])
ctranslate2.converters.TransformersConverter(str(folder)).convert(str(folder / "ct2"))
translator = ctranslate2.Translator(str(folder / "ct2"), device="cpu")
words = json.loads((folder / "words.json").read_text())
length = {"min_decoding_length": 8, "max_decoding_length": 8}
found = [translator.translate_batch(words, beam_size=beam, **length) for beam in (1, 4)]
(folder / "found.json").write_text(json.dumps([[x.hypotheses[0] for x in each] for each in found]))
"""


@pytest.mark.slow
def test_ctranslate2(tmp_path):
    pytest.importorskip("ctranslate2", reason="needs ctranslate2")
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    words = ["</s>", "<unk>", *(f"w{i}" for i in range(2, V - 1)), "<pad>"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    T.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path)
    model = perturb(attach(build("marian"), depth=2, bias=True))
    with torch.no_grad():
        model.get_input_embeddings().weight[-1] = 0  # the row that <pad> starts decoding with
    fold(model).save_pretrained(tmp_path)
    (tmp_path / "words.json").write_text(json.dumps([[words[i] for i in row] for row in IDS]))
    without_drill(CTRANSLATE2, tmp_path)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    options |= {"attention_mask": torch.ones_like(IDS), "suppress_tokens": [98]}
    found = json.loads((tmp_path / "found.json").read_text())
    for beam, translations in zip((1, 4), found, strict=True):
        ids = model.generate(IDS, num_beams=beam, **options)
        assert translations == [[words[i] for i in row[1:]] for row in ids]


GGUF = """
import llama_cpp, numpy
model = llama_cpp.Llama(sys.argv[1] + "/model.gguf", logits_all=True, n_ctx=64, verbose=False)
logits = []
for row in numpy.load(sys.argv[1] + "/ids.npy"):
    model.reset()
    model.eval(row.tolist())
    logits.append(model.scores[: len(row)].copy())
numpy.save(sys.argv[1] + "/logits.npy", numpy.stack(logits))
"""


@pytest.mark.slow
def test_gguf(tmp_path):
    script = shutil.which("convert_hf_to_gguf.py")
    if script is None:
        pytest.skip("needs convert_hf_to_gguf.py of llama.cpp on PATH")
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, V))]
    vocabulary = {word: i for i, word in enumerate(words)}
    bpe = tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback()])
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    T.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path)
    model = perturb(attach(build("llama"), depth=2))
    fold(model).save_pretrained(tmp_path)
    options = ["--outtype", "f32", "--outfile", tmp_path / "model.gguf"]
    python(script, tmp_path, *options)
    np.save(tmp_path / "ids.npy", IDS.numpy())
    without_drill(GGUF, tmp_path)
    got = torch.from_numpy(np.load(tmp_path / "logits.npy"))
    torch.testing.assert_close(got, logits(model), rtol=1e-3, atol=1e-3)
