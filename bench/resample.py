"""Whether translations of one test text differ by more than which sentences happen to be in it.

Paired bootstrap (Koehn, EMNLP 2004) by sacrebleu: BLEU of the same sentences, drawn again and again
with replacement, of the first file and of each other one. p is the share of draws that differ as
much, once they are moved to a difference of zero. It says nothing of other seeds.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from drill.data.extras import lacking

try:
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest
except ImportError:
    raise SystemExit(str(lacking("the bootstrap needs", "sacrebleu"))) from None


def table(reference: Path, files: Sequence[Path], draws: int) -> Iterable[str]:
    named = [(str(file), lines(file)) for file in files]
    person = lines(reference)
    for name, own in named:
        if len(own) != len(person):
            raise SystemExit(
                f"{name}: has {len(own)} lines and {reference} {len(person)}; give translations of "
                "that text"
            )
    signatures, found = PairedTest(
        named, {"BLEU": BLEU()}, [person], test_type="bs", n_samples=draws
    )()
    yield "| | BLEU | over the first | p |"
    yield "|---|---:|---:|---:|"
    first, *others = found["BLEU"]
    yield f"| {files[0]} | {first.score:.2f} | | |"
    for file, result in zip(files[1:], others, strict=True):
        over = f"{result.score - first.score:+.2f}"
        yield f"| {file} | {result.score:.2f} | {over} | {result.p_value:.3f} |"
    yield from ("", signatures["BLEU"].format())


def lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{path}: cannot be read ({error}); give a UTF-8 text") from None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("reference", type=Path, help="what a person made of the test text")
    options.add_argument("files", nargs="+", type=Path, help="translations, such as test.de.hyp")
    options.add_argument("--draws", type=int, default=1000)
    args = options.parse_args()
    if len(args.files) < 2:
        options.error("give at least two files of translations, the first to hold others against")
    print("\n".join(table(args.reference, args.files, args.draws)))


if __name__ == "__main__":
    main()
