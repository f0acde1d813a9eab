"""A translator: a Transformer and an output layer."""

from typing import Any

from torch import Tensor, nn

from drill.layers.base import OutputLayer
from drill.models.encoder import check_widths
from drill.models.transformer.transformer import Transformer


class Translator(nn.Module):
    """p(y_t | y_<t, x) = layer(transformer(x, y_<t)): a Transformer with any output layer.

    If the layer shares the target embedding, it is one Parameter and counted once.

        model = Translator(Transformer(embedding), DeepResidual(embedding, depth=2))
        loss = model.loss(source, target_in, target_out)

    Rows are padded on the right with ``transformer.pad``. For a target sentence w_1 .. w_n,
    ``target_in`` is <bos> w_1 .. w_n and ``target_out`` is w_1 .. w_n <eos>.

    Args:
        transformer: encoder and decoder.
        layer: the output layer, with as many labels as the target embedding has rows.
    """

    def __init__(self, transformer: Transformer, layer: OutputLayer) -> None:
        super().__init__()
        words = transformer.target_embedding.num_embeddings
        if words != layer.vocabulary_size:
            raise ValueError(
                f"Translator: the target embedding has {words} rows, but the layer "
                f"{layer.vocabulary_size} labels; both need the same vocabulary"
            )
        check_widths("Translator", transformer, layer)
        self.transformer = transformer
        self.layer = layer

    def loss(
        self,
        source: Tensor,  # (B, S)
        target_in: Tensor,  # (B, T)
        target_out: Tensor,  # (B, T)
        *,
        label_smoothing: float = 0.1,
        ignore_index: int | None = None,
        **options: Any,
    ) -> Tensor:
        """Mean of -log p(target_out) over all tokens but padding, in nats.

        Args:
            source: (B, S), source ids.
            target_in: (B, T), target ids after <bos>.
            target_out: (B, T), the same ids before <eos>.
            label_smoothing: as in ``F.cross_entropy``; report losses with 0.
            ignore_index: the id of padding in ``target_out``; the transformer's ``pad`` by default.
            options: for ``layer.nll``: ``reduction="sum"`` for micro-batches, ``check=False``
                avoids waiting for a GPU.

        Returns:
            A scalar; with ``reduction="none"`` a loss per token, (T, B).
        """
        return self.layer.nll(
            self._hidden(source, target_in),
            target_out.t(),
            ignore_index=self.transformer.pad if ignore_index is None else ignore_index,
            label_smoothing=label_smoothing,
            **options,
        )

    def forward(
        self, source: Tensor, target_in: Tensor, target_out: Tensor, **options: Any
    ) -> Tensor:
        """``loss``, for wrappers such as DistributedDataParallel."""
        return self.loss(source, target_in, target_out, **options)

    def log_probs(self, source: Tensor, target_in: Tensor) -> Tensor:
        """log p of every label after each of ``target_in``.

        Args:
            source: (B, S), source ids.
            target_in: (B, T), target ids after <bos>.

        Returns:
            (B, T, V).
        """
        return self.layer.log_probs(self._hidden(source, target_in)).transpose(0, 1)

    def parameter_count(self) -> int:
        """Count trained parameters; shared ones once.

        Returns:
            The number of their entries.
        """
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def _hidden(self, source: Tensor, target_in: Tensor) -> Tensor:
        """(T, B, d): time first, because locked dropout of a layer shares its mask over time."""
        return self.transformer(source, target_in).transpose(0, 1)
