"""What does the start of a shared embedding do to a small model? Perplexity by head and start.

A GRU over the demo's first tokens, a few epochs of Adam, as one would try a layer in a model of
one's own: `python bench/embedding_start.py`. The first start is nn.Embedding's own, N(0, 1).
"""

import argparse
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill import DeepResidual
from drill.language_modeling.build import corpus
from drill.training.settings import recipe

WIDTH, ROWS, STEPS = 96, 20, 35
RATE = 3e-3
CLIP = 1.0
VALID = 20_000  # tokens

Loss = Callable[[Tensor, Tensor], Tensor]
STARTS: dict[str, Callable[[Tensor], object]] = {
    "N(0, 1)": nn.init.normal_,
    "uniform in ±0.1": lambda weight: nn.init.uniform_(weight, -0.1, 0.1),
}


def linear(embedding: nn.Embedding) -> tuple[nn.Module, Loss]:
    head = nn.Linear(WIDTH, embedding.num_embeddings)
    return head, lambda hidden, targets: F.cross_entropy(head(hidden), targets)


def tied(embedding: nn.Embedding) -> tuple[nn.Module, Loss]:
    head, loss = linear(embedding)
    head.weight = embedding.weight
    return head, loss


def deep_residual(dropout: float) -> Callable[[nn.Embedding], tuple[nn.Module, Loss]]:
    def build(embedding: nn.Embedding) -> tuple[nn.Module, Loss]:
        head = DeepResidual(embedding, depth=4, dropout=dropout)
        return head, lambda hidden, targets: head.nll(hidden, targets, check=False)

    return build


HEADS = {
    "nn.Linear": linear,
    "nn.Linear, tied": tied,
    "DeepResidual, dropout 0.6": deep_residual(0.6),
    "DeepResidual": deep_residual(0.0),
}


def perplexity(
    head: str, start: str, train: Tensor, valid: Tensor, words: int, epochs: int
) -> float:
    """Of the validation tokens after so many epochs."""
    torch.manual_seed(0)
    embedding = nn.Embedding(words, WIDTH)
    STARTS[start](embedding.weight.detach())
    encoder = nn.GRU(WIDTH, WIDTH)
    layer, loss = HEADS[head](embedding)
    model = nn.ModuleList([embedding, encoder, layer])
    adam = torch.optim.Adam(model.parameters(), lr=RATE)

    def read(text: Tensor) -> Iterable[tuple[Tensor, int]]:
        columns = text[: len(text) // ROWS * ROWS].view(ROWS, -1).t()
        state = None
        for at in range(0, len(columns) - 1, STEPS):
            part = columns[at : at + STEPS + 1]
            hidden, state = encoder(embedding(part[:-1]), state)
            state = state.detach()
            yield loss(hidden.flatten(0, 1), part[1:].flatten()), part[1:].numel()

    for _ in range(epochs):
        for value, _ in read(train):
            adam.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            adam.step()
    model.eval()
    with torch.no_grad():
        losses = [(float(value) * tokens, tokens) for value, tokens in read(valid)]
    total = sum(loss for loss, _ in losses) / sum(tokens for _, tokens in losses)
    return float(torch.tensor(total).exp())


def table(found: Mapping[str, Mapping[str, float]]) -> Iterable[str]:
    yield f"| head | {' | '.join(STARTS)} |"
    yield f"|---|{'---:|' * len(STARTS)}"
    for head, by_start in found.items():
        yield f"| {head} | {' | '.join(f'{by_start[start]:.1f}' for start in STARTS)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tokens", type=int, default=100_000, help="of the demo's text, trained on"
    )
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    ids, vocabulary = corpus(recipe("demo-tied"))
    train, valid = (
        torch.from_numpy(part[:count].astype("int64"))
        for part, count in ((ids.train, options.tokens), (ids.valid, VALID))
    )
    words = len(vocabulary)
    found = {
        head: {
            start: perplexity(head, start, train, valid, words, options.epochs) for start in STARTS
        }
        for head in HEADS
    }
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
