"""How fast is a GPT-style model trained? Ours against the same model of transformers.

A step is that of the recipes: loss, gradients, clipping, AdamW, products in bfloat16. The other
side is the loop one writes by hand, with torch.compile over model and F.cross_entropy and torch's
fused AdamW; and a step of transformers' Trainer with the same options. Only blocks are compiled in
ours: the loss has kernels of its own.
"""

import copy
import tempfile
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case, Size, parser
from measure import Prepare, Report, Step, add_rate, measure
from step import our_step, plain_step, vocabulary
from torch import Tensor, nn

from drill.language_modeling import build
from drill.training.settings import Settings, recipe

BASE, TRAINER = "transformers, compiled loop", "transformers Trainer"
RECIPES = {"small": "gpt", "medium": "gpt-medium"}
TIMED_LAYERS = {"drill tied": "tied", "drill full": "untied", "drill deep-residual 2": "drill"}
LABELS = (32_000, 128_000)
QUICK = {"embedding_dim": 32, "layers": 2, "heads": 2, "intermediate_size": 64}


def settings(size: str, layer: str, quick: bool) -> Settings:
    chosen = recipe(f"{RECIPES[size]}-{layer}")
    if quick:
        small = {"batch_size": 2, "bptt": 16, "compile": False}
        return chosen.changed(encoder=QUICK, training=small)
    return chosen.changed(training={"compile": True})


def stock(chosen: Settings, case: Case) -> nn.Module:
    """The model of transformers with the blocks of ours, its head tied."""
    from transformers import AutoModelForCausalLM

    blocks = build.language_model(chosen, vocabulary(2)).encoder.body
    config = copy.deepcopy(blocks.config)
    config.vocab_size, config.tie_word_embeddings = case.size.labels, True
    config.use_cache = False
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(case.device).train()


def variants(case: Case, quick: bool) -> dict[str, Prepare]:
    tied = settings(case.name, "tied", quick)
    training = tied.training
    shape = training["bptt"] + 1, training["batch_size"]
    data = torch.randint(case.size.labels, shape, device=case.device)
    ids, targets = (each.t().contiguous() for each in (data[:-1], data[1:]))  # (B, T)

    def loop() -> Step:
        model = stock(tied, case)

        def mean_loss() -> Tensor:
            with case.autocast():
                logits = model(input_ids=ids).logits
                return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

        loss = torch.compile(mean_loss) if training["compile"] else mean_loss
        return plain_step(tied, model, loss)

    def trainer() -> Step:
        from transformers import Trainer, TrainingArguments

        options = TrainingArguments(
            tempfile.gettempdir(),
            bf16=case.dtype == "autocast",
            torch_compile=training["compile"],
            optim="adamw_torch_fused",
            use_cpu=case.device.type == "cpu",
            report_to=[],
        )
        made = Trainer(stock(tied, case), options)
        made.create_optimizer_and_scheduler(1_000_000)
        model, optimizer = made.accelerator.prepare(made.model, made.optimizer)
        made.current_gradient_accumulation_steps = 1

        def step() -> list[Tensor]:
            # Labels are shifted inside, so it predicts one token of each row fewer than the others.
            value = made.training_step(model, {"input_ids": ids, "labels": ids})
            most = tied.optimizer["max_grad_norm"]
            made.accelerator.clip_grad_norm_(model.parameters(), most)
            optimizer.step()
            optimizer.zero_grad()
            return [value]

        return step

    models = {
        name: partial(our_step, settings(case.name, layer, quick), case, data)
        for name, layer in TIMED_LAYERS.items()
    }
    return {BASE: loop, TRAINER: trainer, **models}


def main() -> None:
    options = parser(__doc__, list(RECIPES))
    options.add_argument("--labels", type=int, nargs="+", help="V; default: by device")
    args = options.parse_args()
    few = None if args.device.type == "cuda" else 1  # on a CPU the smallest
    dtypes = args.dtype or (["float32"] if few else ["autocast"])
    report = Report("gpt", args)
    for name in args.size or list(RECIPES)[:few]:
        chosen = settings(name, "tied", args.quick)
        tokens = chosen.training["batch_size"] * chosen.training["bptt"]
        for labels in args.labels or LABELS[:few]:
            size = Size(tokens, labels, chosen.encoder["embedding_dim"])
            size = size._replace(labels=labels // 100) if args.quick else size
            for dtype in dtypes:
                torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
                case = Case(name, size, dtype, args.device)
                models = variants(case, args.quick)
                results = measure(models, args, rounds=(5, 100), no_graph=tuple(models))
                add_rate(results, "tokens_per_second", tokens)
                report.add(case, results, compiled=chosen.training["compile"])
                torch.compiler.reset()
    report.finish("peak MiB: beyond weights and moments of AdamW; gradients are inside")


if __name__ == "__main__":
    main()
