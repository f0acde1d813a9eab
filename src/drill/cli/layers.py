"""`drill layers`: what every output layer costs."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer


def layers(
    vocabulary: Annotated[int, typer.Option(min=2, max=10**8, help="V, vocabulary size.")] = 10_000,
    width: Annotated[int, typer.Option(min=1, max=10**5, help="d, embedding size.")] = 400,
    hidden: Annotated[
        int | None, typer.Option(min=1, max=10**5, help="d_h, hidden size; d by default.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, max=10**6, help="N, tokens per step.")] = 1_400,
    depth: Annotated[int, typer.Option(min=0, max=1000, help="Depth of deep-residual.")] = 4,
    experts: Annotated[int, typer.Option(min=1, max=1000, help="Experts of mixture.")] = 15,
    joint: Annotated[
        int | None, typer.Option(min=1, max=10**5, help="Joint size of dual; d by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """List the output layers and their cost.

    Parameters, and FLOPs of training and inference.
    """
    from drill.layers.cost import FORMULAE, cost, example_layers

    hidden, joint = hidden or width, joint or width
    sizes = {"vocabulary": vocabulary, "width": width, "hidden": hidden, "tokens": tokens}
    sizes |= {"depth": depth, "experts": experts, "joint": joint}
    built = example_layers(vocabulary, width, hidden, depth=depth, experts=experts, joint=joint)
    costs = {name: cost(layer, tokens) for name, layer in built.items()}
    rows = [
        {
            "layer": name,
            "g_out": FORMULAE[name][0],
            "g_in": FORMULAE[name][1],
            "hidden": built[name].hidden_size,
            **asdict(costs[name]),
            "train_over_tied": costs[name].train_flops / costs["tied"].train_flops,
        }
        for name in built
    ]
    if as_json:
        typer.echo(json.dumps({**sizes, "layers": rows}, indent=2))
    else:
        _print_costs(sizes, rows)


def _print_costs(sizes: dict[str, int], rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in ["layer", "g_out(E)", "g_in(h)"]:
        table.add_column(heading, no_wrap=True)
    for heading in ["own\nparameters", "train\nGFLOP", "x\ntied", "infer\nGFLOP", "folds"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["layer"],
            row["g_out"],
            row["g_in"],
            f"{row['parameters']:,}",
            _giga(row["train_flops"]),
            _ratio(row["train_over_tied"]),
            _giga(row["inference_flops"]),
            "yes" if row["folded"] else "no",
        )
    # Wider than any table: a narrow terminal wraps lines by itself, a number must not be cut.
    console = Console(highlight=False, width=200)
    V, d, h, N = (f"{sizes[name]:,}" for name in ["vocabulary", "width", "hidden", "tokens"])
    console.print(f"V = {V} labels, d = {d}, d_h = {h}, N = {N} tokens a step\n")
    console.print(table)
    console.print("\nown parameters: beyond the embedding E, which the encoder shares")
    console.print("train: one loss and its gradients; infer: the labels are already encoded")
    console.print("folds: once trained, a single nn.Linear on g_in(h) replaces the layer")
    console.print("mixture, sampled and adaptive wrap the tied layer here")
    if narrow := [row["layer"] for row in rows if row["hidden"] != sizes["hidden"]]:
        console.print(f"counted at d_h = d = {d}, which they need: {', '.join(narrow)}")


def _ratio(times: float) -> str:
    return f"{times:,.2f}" if times >= 0.01 else f"{times:.1g}"  # nothing costs nothing


def _giga(flops: int) -> str:
    return f"{flops / 1e9:,.1f}" if flops >= 10**9 else f"{flops / 1e9:.2g}"
