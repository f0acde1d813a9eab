"""Tiny random models of transformers, without dropout, and a batch for them."""

import pytest
import torch

T = pytest.importorskip("transformers", reason="needs transformers")

V = 99
SIZES = {"vocab_size": V, "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 1}
LLAMA = SIZES | {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "eos_token_id": 2,
}  # fmt: skip
BART = {
    "vocab_size": V, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "dropout": 0.0, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = SIZES | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": 2}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
T5 = {"vocab_size": V, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
MARIAN = BART | {"pad_token_id": 98, "eos_token_id": 0, "decoder_start_token_id": 98}
MARIAN |= {"forced_eos_token_id": None}

CONFIGS = {
    "gpt2": lambda: T.GPT2Config(**GPT2, **NO_DROPOUT),
    "llama": lambda: T.LlamaConfig(**LLAMA),
    "llama-untied": lambda: T.LlamaConfig(**LLAMA | {"tie_word_embeddings": False}),
    "qwen": lambda: T.Qwen3Config(**LLAMA),
    "qwen-moe": lambda: T.Qwen3MoeConfig(
        **LLAMA, num_experts=4, num_experts_per_tok=2, output_router_logits=True
    ),
    "gemma": lambda: T.Gemma2Config(**LLAMA, final_logit_softcapping=2.0),
    "t5": lambda: T.T5Config(**T5, dropout_rate=0.0, decoder_start_token_id=0),
    "bart": lambda: T.BartConfig(**BART, decoder_start_token_id=2, forced_eos_token_id=None),
    "m2m100": lambda: T.M2M100Config(
        **BART, attention_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0
    ),
    "marian": lambda: T.MarianConfig(**MARIAN),
    "marian-two-vocabularies": lambda: T.MarianConfig(
        **MARIAN, share_encoder_decoder_embeddings=False, decoder_vocab_size=V
    ),
}
FAMILIES = sorted(CONFIGS)


def auto(config):
    return T.AutoModelForSeq2SeqLM if config.is_encoder_decoder else T.AutoModelForCausalLM


def build(family):
    """A model in eval mode; final_logits_bias, which starts at zero, is drawn."""
    torch.manual_seed(0)
    config = CONFIGS[family]()
    model = auto(config).from_config(config).eval()
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model


def batch():
    """Ids and labels (2, 7), some of them ignored."""
    ids = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, 5:] = -100
    return {"input_ids": ids, "labels": labels}


@torch.no_grad()
def perturb(model):
    """As if trained: every trained parameter is moved."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


@torch.no_grad()
def logits(model):
    return model.eval()(**batch()).logits
