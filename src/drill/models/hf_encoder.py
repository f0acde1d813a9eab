"""Any causal Transformer of Hugging Face transformers as an encoder.

output = f(E[ids])        f: the blocks of a model type, by default Llama's (RoPE, RMSNorm, SwiGLU)

A window of text stands alone: positions start at 0 and nothing is carried to the next window. For
generation and scores, ``reading_state`` starts a state that remembers the text read so far.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from drill.errors import invalid, require
from drill.layers.checks import check_fraction, check_integer, check_positive, restored_modes
from drill.layers.label_source import LabelSource, factory_kwargs, label_width
from drill.models.encoder import Encoded, Encoder, State

DROPOUTS = ("attention_dropout", "attn_pdrop", "resid_pdrop", "hidden_dropout", "residual_dropout")
INNER_SIZES = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
"""What model types call these settings."""


class HfEncoder(Encoder):
    """The blocks of a causal language model of transformers, untrained; for language models.

    Args:
        embedding: the model's nn.Embedding (V, d) or label source, shared; its parameters are
            initialised from N(0, init_std).
        model_type: of transformers: llama, qwen3, gpt2, gpt_neox, ...
        layers: number of blocks.
        heads: attention heads of each; divides d.
        kv_heads: heads of keys and values, where the model type has grouped queries.
        intermediate_size: width inside the feed-forward part; 8/3 d by default, a multiple of 64.
        context_length: the longest window.
        dropout: of the embedded tokens, of the output, and wherever the model type has one.
        init_std: of the embedding and of all matrices.
        output_layers: the states of how many of the last blocks are concatenated in the output, for
            layers such as DirectOutputConnection; only the last of all is normalised.
    """

    carries_state = False
    can_compile = True

    def __init__(
        self,
        embedding: nn.Embedding | LabelSource,
        model_type: str = "llama",
        layers: int = 8,
        heads: int = 8,
        *,
        kv_heads: int | None = None,
        intermediate_size: int | None = None,
        context_length: int = 1024,
        dropout: float = 0.0,
        init_std: float = 0.02,
        output_layers: int = 1,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        d = label_width(owner, embedding)
        sizes = {"layers": layers, "heads": heads, "context_length": context_length}
        sizes |= {"kv_heads": kv_heads or heads, "intermediate_size": intermediate_size or 1}
        sizes |= {"output_layers": output_layers}
        for name, value in sizes.items():
            check_integer(owner, name, value)
        require(d % heads == 0, owner, "heads", f"a divisor of embedding_dim {d}", heads)
        check_positive(owner, "init_std", init_std)
        most = f"at most {layers}"
        require(output_layers <= layers, owner, "output_layers", most, output_layers)
        self.output_layers = output_layers
        self.output_size = output_layers * d
        self.context_length = context_length
        self.dropout = check_fraction(owner, "dropout", dropout)
        self.embedding = embedding
        for p in cast(nn.Module, embedding).parameters():
            nn.init.normal_(p, std=init_std)
        self.body = _body(
            model_type,
            dropout,
            output_layers,
            hidden_size=d,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads or heads,
            intermediate_size=intermediate_size or -(-8 * d // 192) * 64,
            head_dim=d // heads,
            rotary_dim=d // heads,
            max_position_embeddings=context_length,
            initializer_range=init_std,
        ).to(**factory_kwargs(embedding))

    @property
    def output_widths(self) -> tuple[int, ...]:
        return (self.output_size // self.output_layers,) * self.output_layers

    def forward(self, ids: Tensor, state: State | None = None) -> Encoded:
        """ids (T, B) -> output (T, B, d_h): a window, or what follows a reading state."""
        if state:
            return self._read(ids, state)
        if ids.shape[0] > self.context_length:
            raise ValueError(
                f"HfEncoder: {ids.shape[0]} tokens are longer than context_length "
                f"{self.context_length}; take a smaller bptt or a larger context_length"
            )
        raw = self._window(ids.t(), use_cache=False).transpose(0, 1)  # (T, B, d_h)
        return Encoded(self._drop(raw), raw, ())

    def initial_state(self, batch: int) -> State:
        """Empty: windows are independent."""
        return ()

    def reading_state(self, batch: int) -> State:
        """The state before the first token of a text that is read part by part: ids (B, 0).

        A token sees the whole text up to ``context_length`` tokens, later at least the last half of
        them. What it sees depends on its place in the text only, not on the parts. Later states
        have the ids of the window (B, P), then keys and values (B, heads, P, d / heads) of every
        block: transformers' cache.
        """
        return ((torch.empty(batch, 0, dtype=torch.int64, device=next(self.parameters()).device),),)

    def _window(self, ids: Tensor, **options: Any) -> Tensor:
        """ids (B, T) -> hidden states (B, T, d_h)."""
        x = self._drop(self.embed(ids))
        states = _states(self.body, x, self.output_layers, **options)
        return torch.cat(states, dim=-1) if len(states) > 1 else states[0]

    def _drop(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.dropout, self.training)

    def _read(self, ids: Tensor, state: State) -> Encoded:
        """New ids (T, B) after those of a reading state, which are less than a window."""
        (past,), *cached = state
        hidden_states, rest = [], ids.t()
        while rest.shape[1] > 0:
            part, rest = rest.tensor_split([self.context_length - past.shape[1]], dim=1)
            past = torch.cat([past, part], dim=1)
            hidden, cached = self._cached_window(part if cached else past, cached)
            hidden_states.append(hidden[:, -part.shape[1] :])
            if past.shape[1] == self.context_length:  # the next window starts in the middle
                past, cached = past[:, self.context_length - self.context_length // 2 :], []
        raw = torch.cat(hidden_states, dim=1).transpose(0, 1)
        return Encoded(self._drop(raw), raw, ((past,), *cached))

    def _cached_window(
        self, ids: Tensor, cached: list[tuple[Tensor, ...]]
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Hidden states of ids (B, T) after cached keys and values, and these with the new ones.

        Models with another memory than keys and values, such as Mamba, have no cache here.
        """
        if self.body._is_stateful:
            return self._window(ids, use_cache=False), []
        from transformers import DynamicCache

        cache = DynamicCache(cached)
        hidden = self._window(ids, past_key_values=cache, use_cache=True)
        return hidden, [(layer.keys, layer.values) for layer in cache.layers]


def _states(body: nn.Module, x: Tensor, count: int, **options: Any) -> list[Tensor]:
    """The states (B, T, d) of the last ``count`` blocks."""
    if count == 1:
        return [body(inputs_embeds=x, **options).last_hidden_state]
    states = body(inputs_embeds=x, output_hidden_states=True, **options).hidden_states
    return [*states[-count:]]


def _body(model_type: str, dropout: float, output_layers: int, **sizes: Any) -> nn.Module:
    """The model of a type without its embedding, which would be a second one."""
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise ImportError(
            'encoder.name = "hf" needs transformers: pip install "drill-lm[hf]"'
        ) from None
    try:
        config = AutoConfig.for_model(model_type)
    except ValueError:
        expected = "one that transformers knows"
        raise invalid("HfEncoder", "model_type", expected, model_type) from None
    names: dict[str, Any] = dict.fromkeys(DROPOUTS, dropout)
    names |= dict.fromkeys(INNER_SIZES, sizes["intermediate_size"])
    known = {name: value for name, value in {**names, **sizes}.items() if hasattr(config, name)}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    try:
        config = AutoConfig.for_model(model_type, vocab_size=1, **tokens, **known)
        body = AutoModel.from_config(config, dtype=torch.float32)
        body.set_input_embeddings(None)
        if not next(body.parameters()).is_meta:  # read two tokens: wrong sizes show here
            with torch.no_grad(), restored_modes(body):
                x = torch.zeros(1, 2, sizes["hidden_size"])
                _states(body.eval(), x, output_layers, use_cache=False)
    except Exception as error:  # each model type has its own
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".: ")
        expected = f"one that runs with these sizes ({reason})"
        raise invalid("HfEncoder", "model_type", expected, model_type) from None
    return cast(nn.Module, body)
