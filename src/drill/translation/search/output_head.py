"""The output layer of a search: labels that are encoded once, for all tokens of all sentences."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from drill.layers.base import head_log_probs
from drill.layers.wrappers.sampled import foldable
from drill.models.translator import Translator
from drill.training.precision import evaluating

Head = Callable[[Tensor], Tensor]
"""hidden (N, d) -> log p of every label (N, V)."""


@dataclass(frozen=True)
class FoldedHead:
    """log softmax(weight context(h) + bias): what a layer of one matrix is once it is trained."""

    context: Head
    linear: nn.Linear

    def __call__(self, hidden: Tensor) -> Tensor:
        return head_log_probs(self.context(hidden), self.linear.weight, self.linear.bias)


@contextmanager
def encoded_once(model: Translator, head: Head | None = None) -> Iterator[Head]:
    """The model's output layer with labels that are encoded once.

        with encoded_once(model) as head:
            for batch in many:
                beam_search(model, batch, decoding, head=head)

    Folded where the layer folds; mixtures and adaptive softmaxes keep their labels cached. Inside,
    the model is in eval mode and must not be trained.

    Args:
        model: the translator.
        head: from an outer call; the labels are not encoded again.

    Returns:
        A context manager that gives a function from hidden states (N, d) to log p (N, V).
    """
    matrix = foldable(model.layer)
    with evaluating(model):
        if head is not None:
            yield head
        elif matrix is not None:
            yield FoldedHead(matrix.context, matrix.fold())
        else:
            with model.layer.cached_labels():
                yield model.layer.log_probs
