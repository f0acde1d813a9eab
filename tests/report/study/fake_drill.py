"""A stand-in for `drill` that writes run folders at once, and studies by it."""

import json
from pathlib import Path
from typing import Any

from drill.report.study import runner
from drill.report.study.plan import TRAINING, Plan, read_plan, row_settings

PLAN = """
name = "small"
seeds = [1, 2]
baseline = "a"

[[row]]
name = "a"
recipe = "tiny.toml"

[[row]]
name = "b"
recipe = "tiny.toml"
set = ["layer.depth=1"]
"""

STAND_IN = """
import json, os, pathlib, signal, sys, time

command, first, *words = sys.argv[1:]
options = dict(zip(words, words[1:]))
folder = pathlib.Path(first)
if command in ("train", "finetune"):
    runs = pathlib.Path(options["--runs"]) if command == "train" else folder.parent
    folder = runs / options["--name"]
stage = "bleu" if command == "evaluate" else command
behaviour = json.loads(pathlib.Path("behaviour.json").read_text()).get(f"{folder.name} {stage}")
with open("started.txt", "a") as stream:
    stream.write(f"{folder.name} {stage}\\n")

def write(name, rows):
    with open(folder / name, "a") as stream:
        stream.writelines(json.dumps(row) + "\\n" for row in rows)

if behaviour == "fail":
    sys.exit("Traceback\\nValueError: bad luck")
while behaviour == "meet" and pathlib.Path("started.txt").read_text().count("\\n") < 2:
    time.sleep(0.02)  # until another job runs
if behaviour == "hang":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("epoch 1", flush=True)
    time.sleep(600)
if behaviour == "crash":
    signal.raise_signal(signal.SIGKILL)
if command not in ("train", "finetune"):
    kind = "translation" if command == "evaluate" else stage
    weights = {"weights": "best", "weights_fingerprint": "f" * 64}
    weights |= {"among": 7.0, "mass": 0.25} if command == "words" else {}
    splits = (("valid", 10), ("test", 1))
    if command == "analyse":
        bands = json.loads(pathlib.Path("figures.json").read_text())[f"{folder.name} bands"]
        weights |= {"rank_absolute": 10, "rank_relative": 18 if folder.name[0] == "b" else 14}
        weights, splits = {**weights, "rank_bound": 18, "bands": bands}, splits[1:]
    write("evaluations.jsonl", [
        {"kind": kind, "split": split, "perplexity": 50.0, "perplexity_all_tokens": 49.9,
         "seconds": 30.0, "batch_size": size if command == "words" else 1, **weights}
        for split, size in splits
    ])
    sys.exit()

folder.mkdir(parents=True, exist_ok=True)
figures = json.loads(pathlib.Path("figures.json").read_text())
valid, test, more = [*figures.get(folder.name, (60.0, 58.0)), {}][:3]
(folder / "recipe.toml").write_text(pathlib.Path("recipes", folder.name).read_text())
about = {"seed": int(folder.name.split("-")[2]), "device": "a GPU", "commit": "abc1234"}
(folder / "environment.json").write_text(json.dumps(about))
def epoch(number, valid):
    return {"kind": "epoch", "epoch": number, "step": 10 * number, "valid_perplexity": valid,
            "valid_all_tokens": valid, "elapsed": 60.0 * number}
if behaviour == "wait" and not (folder / "metrics.jsonl").exists():
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    write("metrics.jsonl", [epoch(1, valid + 10)])
    pathlib.Path("part.txt").write_text(str(os.getpid()))
    pathlib.Path("part.txt").rename("waiting.txt")
    time.sleep(600)
(folder / "metrics.jsonl").unlink(missing_ok=True)
write("metrics.jsonl", [epoch(1, valid + 10), epoch(2, valid)])
write("metrics.jsonl", [
    {"kind": "test", "epoch": 2, "valid_perplexity": valid, "test_perplexity": test,
     "valid_all_tokens": valid, "test_all_tokens": test, "elapsed": 121.0,
     "weights_fingerprint": "f" * 64, **more}
])
(folder / "best.safetensors").write_bytes(b"")
"""


class StudyWorkspace:
    """Where a study runs: in the folder one is in, with the stand-in."""

    ledger = Path("results.jsonl")
    runs = Path("runs")

    def plan(self, text: str = PLAN) -> Plan:
        """Read a plan; the stand-in learns the settings of its runs."""
        Path("plan.toml").write_text(text)
        plan = read_plan("plan.toml")
        for job in plan.jobs():
            if job.stage in TRAINING:
                toml = row_settings(job.row, job.seed, job.stage).to_toml()
                Path("recipes", job.run).write_text(toml)
        return plan

    def behave(self, **behaviour: str) -> None:
        """``a_seed_1__train="fail"``: what the stand-in does instead."""
        named = {key.replace("__", " ").replace("_", "-"): each for key, each in behaviour.items()}
        Path("behaviour.json").write_text(json.dumps(named))

    def study(self, plan: Plan | None = None, **options: Any) -> list[str]:
        """Run a study; returns the jobs that were started."""
        Path("started.txt").write_text("")
        self.said: list[str] = []
        given = (plan or self.plan(), self.ledger, self.runs)
        runner.StudyRunner(*given, say=self.said.append, **options).run()
        return self.started()

    def started(self) -> list[str]:
        return Path("started.txt").read_text().splitlines()
