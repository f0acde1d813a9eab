"""Output layers of drill in models of Hugging Face transformers.

from drill.hf import attach, fold

model = AutoModelForCausalLM.from_pretrained(name)
attach(model, "deep-residual", depth=2)  # Trainer, generate, save_pretrained: as before
model.save_pretrained("out")             # after `import drill.hf`, AutoModelForCausalLM reads it
fold(model).save_pretrained("stock")     # a plain model: no drill needed to read it

attach_fold     the two functions
attached_model  forward with labels, the fused loss in training; saving and reading
attached_head   what replaces lm_head
"""

from typing import Any

try:
    import transformers as transformers
except ModuleNotFoundError as error:
    raise ImportError('drill.hf needs transformers: pip install "drill-lm[hf]"') from error

from drill.hf.attach_fold import attach, fold
from drill.hf.attached_model import attached_class_by_name

__all__ = ["attach", "fold"]


def __getattr__(name: str) -> Any:
    """Classes with a layer attached, by the name of the stock class: pickle asks for them."""
    if name.endswith(("Model", "LM", "Generation", "Config")):
        return attached_class_by_name(name)
    raise AttributeError(f"module 'drill.hf' has no attribute {name!r}")
