"""Damaged run folders, odd settings and odd arguments: exit status 0, 1 or 2, never a traceback.

    FUZZ_SEED=7 python -m tests.test_fuzz FOLDER

Every case is a process forked from this program, which has imported torch and computed nothing. It
may take 6 GiB and a minute. A failure prints the seed and the command.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.helpers.processes import python

SEED = int(os.environ.get("FUZZ_SEED", "0"))
MEMORY = 6 * 2**30
SECONDS = 60

WHOLE = (0, -1, 1, 2, 7, 100_000, 10**9, 2**31, 2**62, 2**63, 10**30, -(2**63))
NUMBERS = ("0", "-1", "0.5", "1", "2", "nan", "-inf", "1e308", "-0.0", "1e-320", "1e30")
OTHERS = (
    *("", "none", "true", "auto", "adamw", "tied", "adaptive", "sampled", "mixture", "../..", "'"),
    *("a\0b", "\x1b[31m", "\ud800", "\u00e4" * 9, "x" * 100_000, "[" * 5000, "1979-05-27", "0x10"),
    *("[1, 2]", "[-1]", "[0]", "['a']", "[[]]", "{}", "{a = 1}"),
)
VALUES = (*map(str, WHOLE), *NUMBERS, *OTHERS)

READERS = {
    "language model": (
        ("generate", "RUN", "--max-new-tokens", "3"),
        ("score", "RUN", "lines.txt"),
        ("evaluate", "RUN"),
        ("cache", "RUN"),
        ("report", "RUN", "-o", "page.html"),
        ("ledger", "add", "RUN", "--ledger", "ledger.jsonl"),
        ("finetune", "RUN", "--set", "training.epochs=1", "-q"),
        ("train", "RUN", "-q"),
        ("train", "RUN", "--set", "training.epochs=3", "-q"),
    ),
    "translator": (
        ("translate", "RUN", "lines.txt"),
        ("evaluate", "RUN", "--split", "valid"),
        ("report", "RUN", "-o", "page.html"),
        ("train", "RUN", "-q"),
        ("train", "RUN", "--set", "training.epochs=3", "-q"),
    ),
}


def damage(path: Path, drawn: random.Random) -> str:
    """Damage a file; returns how."""
    content = path.read_bytes()
    kind = drawn.choice(["truncate", "flip", "folder", "empty", "json", "lines", "gone"])
    path.unlink()
    if kind == "truncate":
        path.write_bytes(content[: drawn.randrange(len(content) + 1)])
    elif kind == "flip":
        changed = bytearray(content)
        for _ in range(drawn.choice((1, 1, 20))):
            changed[drawn.randrange(len(changed))] ^= 1 << drawn.randrange(8)
        path.write_bytes(changed)
    elif kind == "folder":
        path.mkdir()
    elif kind == "json":
        others = ("null", "[]", "{}", '"a"', "7", '{"kind": "test"}', '{"resumed": 7}', "[" * 10**5)
        path.write_text(drawn.choice(others) + drawn.choice(("", "\n")))
    elif kind == "lines":
        path.write_bytes(
            content.replace(b"\n", b"\r\n") + drawn.choice((b'{"kind": "test"}\n', b""))
        )
    elif kind == "empty":
        path.write_bytes(b"")
    return kind


def started(words: Sequence[str], log: Path) -> int:
    """A process that runs the command."""
    pid = os.fork()
    if pid:
        return pid
    from drill import cli

    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.argv = ["drill", *words]
    status = 99
    try:
        cli.main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def fault(words: Sequence[str], log: Path) -> str | None:
    """What is wrong with how a command ended; None if nothing is."""
    pid, end = started(words, log), time.monotonic() + SECONDS
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"took more than {SECONDS} seconds"
        time.sleep(0.005)
    status, text = os.waitstatus_to_exitcode(found[1]), log.read_text(errors="replace")
    if status not in (0, 1, 2) or "Traceback" in text or any(c in text for c in "\0\x1b"):
        return f"ended with {status}: {text[-600:]}"
    return None


def damaged_folders(place: Path, drawn: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Cases: what was done, and the command."""
    for task, count in (("language model", 70), ("translator", 40)):
        own = place / task
        files = [path for path in (own / "runs/tiny").rglob("*") if path.is_file()]
        files = [path for path in files if path.name != ".lock"]
        for _ in range(count):
            os.chdir(own)
            shutil.rmtree("damaged", ignore_errors=True)
            shutil.rmtree("damaged-finetune", ignore_errors=True)
            shutil.copytree("runs/tiny", "damaged")
            file = drawn.choice(files).relative_to(own / "runs/tiny")
            how = damage(Path("damaged") / file, drawn)
            words = drawn.choice(READERS[task])
            yield f"{task}, {how} {file}", ["damaged" if w == "RUN" else w for w in words]


def change(known: dict[str, object], drawn: random.Random) -> str:
    """``key=value``; three times of four the value is a number where one is expected."""
    key = drawn.choice([*known])
    numbers = {int: [*map(str, WHOLE)], float: NUMBERS}.get(type(known[key]), VALUES)
    return f"{key}={drawn.choice(numbers if drawn.random() < 0.75 else VALUES)}"


def odd_settings(place: Path, drawn: random.Random) -> Iterator[tuple[str, list[str]]]:
    from drill.training.settings import flatten, recipe
    from tests.helpers.translators import set_by_command

    for task, name, count in (("language model", "tiny.toml", 120), ("translator", "mt-demo", 60)):
        os.chdir(place / task)
        known = flatten(recipe(name).tables())
        known |= dict.fromkeys(("init_from", "task", "layer", "nothing", "a.b.c", ""))
        usual = set_by_command() if task == "translator" else []
        for _ in range(count):
            shutil.rmtree("odd", ignore_errors=True)
            changes = [change(known, drawn) for _ in range(drawn.choice((1, 1, 2)))]
            limits = ["--set", "training.max_minutes=0.0001", "--runs", "odd", "--device", "cpu"]
            odd = [word for change in changes for word in ("--set", change)]
            yield f"{task} settings", ["train", name, *usual, *odd, *limits, "-q"]


def odd_arguments(place: Path, drawn: random.Random) -> Iterator[tuple[str, list[str]]]:
    options = {
        "generate": (
            *("--max-new-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--prompt"),
        ),
        "score": ("--device", "--weights"),
        "evaluate": ("--device", "--weights", "--text", "--batch-size", "--split"),
        "cache": ("--lambda", "--theta", "--window"),
        "dynamic": ("--lr", "--decay", "--segment-length", "--limit"),
        "train": ("--name", "--runs", "--device", "--set"),
        "report": ("-o", "--title", "--ledger"),
        "settings": ("--set",),
        "data": ("--min-count", "--source"),
    }
    os.chdir(place / "language model")
    for _ in range(80):
        command = drawn.choice([*options])
        first = {"settings": "tiny.toml", "data": "text"}.get(command, "runs/tiny")
        words = [command, drawn.choice((first, first, first, *VALUES))]
        words += [drawn.choice(options[command]), drawn.choice(VALUES)]
        yield "arguments", words


def main(place: Path) -> None:
    import torch._dynamo  # noqa: F401 - the first optimizer would import it in every process

    import drill.cli.app
    import drill.tasks  # noqa: F401
    from tests.helpers.workspaces import pairs_workspace, text_workspace

    os.environ |= {"XDG_CACHE_HOME": str(place / "cache"), "DRILL_COMMIT": "0000000"}
    makers = {"language model": text_workspace, "translator": pairs_workspace}
    for task, make in makers.items():
        (place / task).mkdir()
        pid = os.fork()
        if not pid:
            make(place / task)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, task
        (place / task / "lines.txt").write_text("the boat is lit\nlamp\n")
    faults, counted = [], 0
    for cases in (damaged_folders, odd_settings, odd_arguments):
        for what, words in cases(place, random.Random(SEED)):
            counted += 1
            found = fault(words, place / "log.txt")
            if found is not None:
                shown = " ".join(word[:60] for word in words)
                faults.append(f"seed {SEED}, case {counted}, {what}: drill {shown!r}: {found}")
                print(faults[-1], flush=True)
    (place / "faults.json").write_text(json.dumps({"cases": counted, "faults": faults}))


@pytest.mark.slow
def test_odd_input_ends_in_one_sentence(tmp_path):
    python("-m", "tests.test_fuzz", tmp_path, timeout=3600)
    found = json.loads((tmp_path / "faults.json").read_text())
    print(f"seed {SEED}: {found['cases']} cases")
    assert found["faults"] == []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
