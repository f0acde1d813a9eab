"""Run every benchmark with its defaults for the device; all rows into one file."""

import argparse
import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("layers", "loss", "memory", "inference", "lstm", "step", "translation", "gpt")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path, metavar="FILE", help="one JSON row per line")
    args, given = options.parse_known_args()  # the others are those of every benchmark
    if args.json is not None:
        args.json.write_text("")
        given += ["--json", str(args.json)]
    scripts = {name: Path(__file__).with_name(f"{name}.py") for name in BENCHMARKS}
    failed = [
        name
        for name, script in scripts.items()
        if subprocess.run([sys.executable, script, *given]).returncode
    ]
    if failed:
        raise SystemExit(f"these benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
