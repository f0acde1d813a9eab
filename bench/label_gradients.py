"""What label maps do to E as they train: its gradient by role, and how far labels depart from E.

    python bench/label_gradients.py --recipe demo-drill --set layer.depth=1 --seed 2

Gradients are of the mean loss of 4 segments of the validation text, without dropout. Columns:

    in, out, cos  norms of the gradient of E as inputs and as what labels are made of; their cosine
    maps          norm of "out" over that of the gradient of g_out(E): 1 with tied weights
    scale         mean row norm of g_out(E) over that of E, both less their mean row
    drift         how far g_out(E) moved since the last point, over how far E did, also centred
    <10 .. other  cosine of g_out(E) and E, centred, the mean over labels by training count
"""

import argparse
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from drill.data import SequenceLengths, batchify, training_segments
from drill.language_modeling.build import corpus, language_model
from drill.language_modeling.evaluation.perplexity import perplexity
from drill.models.language_model import LanguageModel
from drill.training.build import build_optimizer
from drill.training.settings import recipe

EDGES = [10, 50, 250, 1000]  # training counts
COLUMNS = ["step", "in", "out", "cos", "maps", "scale", "drift", *(f"<{n}" for n in EDGES), "other"]


def gradients(model: LanguageModel, text: Tensor, bptt: int) -> list[Tensor]:
    """Gradients of the mean loss by E as inputs, E as labels, and g_out(E); each (V, d)."""
    E = model.layer.label_weight
    inputs = E.detach().clone().requires_grad_()
    model.encoder.embed = lambda ids: F.embedding(ids, inputs)
    found, state = [torch.zeros_like(E) for _ in range(3)], None
    for i in range(0, 4 * bptt, bptt):
        encoded = model.encoder(text[i : i + bptt], state)
        state, labels = model.encoder.detach(encoded.state), model.layer.labels()
        logits = F.linear(encoded.output, labels, model.layer.bias)
        loss = F.cross_entropy(logits.flatten(0, 1), text[i + 1 : i + bptt + 1].flatten())
        for total, each in zip(found, torch.autograd.grad(loss, [inputs, E, labels]), strict=True):
            total += each / 4
    del model.encoder.embed
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="demo-drill", help="of a language model")
    parser.add_argument("--set", nargs="+", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of the whole schedule; one epoch by default")
    given = parser.parse_args()
    settings = recipe(given.recipe, given.set)
    bptt, batch = settings.training["bptt"], settings.training["batch_size"]
    weights = {key: settings.training[key] for key in ("ar_weight", "tar_weight")}
    ids, vocabulary = corpus(settings)
    torch.manual_seed(given.seed)
    model, optimizer = language_model(settings, vocabulary), build_optimizer(settings)
    optimizer.setup(model.named_parameters())
    train, valid = (batchify(split, batch, "batch_size") for split in (ids.train, ids.valid))
    lengths = SequenceLengths(given.seed, bptt)
    segments = [*islice(training_segments(len(train), lengths), given.steps)]
    points = {round(i * len(segments) / 7) for i in range(8)}
    bands = torch.bucketize(torch.from_numpy(vocabulary.counts), torch.tensor(EDGES), right=True)
    print("".join(f"{name:>8}" for name in COLUMNS))
    before, state = None, None
    for step, segment in enumerate([*segments, None]):
        if step in points:
            roles = [each.view(-1) for each in gradients(model.eval(), valid, bptt)]
            now = (each.detach() for each in (model.layer.label_weight, model.layer.labels()))
            E, g = (each - each.mean(0) for each in now)
            row = [roles[0].norm(), roles[1].norm(), F.cosine_similarity(*roles[:2], dim=0)]
            row += [row[1] / roles[2].norm(), g.norm(dim=1).mean() / E.norm(dim=1).mean()]
            row += [(g - before[1]).norm() / (E - before[0]).norm() if before else torch.nan]
            row += [F.cosine_similarity(E, g)[bands == i].mean() for i in range(len(EDGES) + 1)]
            print(f"{step:8}" + "".join(f"{float(each):8.3f}" for each in row), flush=True)
            before = E, g
        if segment is not None:
            read = train[segment.start : segment.start + segment.length + 1]
            loss = model.train().loss(read[:-1], read[1:], state, **weights)
            loss.total.backward()
            optimizer.step(segment.sampled_length, bptt, step / len(segments))
            state = loss.state
    print(f"validation perplexity {perplexity(model, ids.valid, bptt=bptt).perplexity:.2f}")


if __name__ == "__main__":
    main()
