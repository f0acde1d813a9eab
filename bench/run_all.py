"""Run every benchmark with its defaults for the device; all results into one file."""

import argparse
import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("layers", "loss", "memory", "inference", "lstm", "step", "translation")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", help="default: cuda where there is one")
    options.add_argument("--quick", action="store_true", help="small sizes, few rounds: a try-out")
    options.add_argument("--json", type=Path, metavar="FILE", help="one JSON row per line")
    args = options.parse_args()
    given = [] if args.device is None else ["--device", args.device]
    given += ["--quick"] if args.quick else []
    if args.json is not None:
        args.json.write_text("")
        given += ["--json", str(args.json)]
    failed = []
    for name in BENCHMARKS:
        script = Path(__file__).with_name(f"{name}.py")
        if subprocess.run([sys.executable, str(script), *given]).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"these benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
