"""Two texts that are line by line translations of each other, read so that lines stay in step."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drill.errors import DataError
from drill.files import lines_of, read_text


@dataclass(frozen=True)
class ParallelText:
    """Line i of ``source`` is line i of ``target`` in the other language.

    text = ParallelText.from_files("train.en.xz", "train.de.xz")
    text += ParallelText.from_files("news.en", "news.de")
    """

    source: Sequence[str]
    target: Sequence[str]

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise DataError(
                f"ParallelText: {len(self.source)} source lines and {len(self.target)} target "
                "lines are no pairs; give as many of one as of the other"
            )

    @classmethod
    def from_files(cls, source: Path | str, target: Path | str) -> "ParallelText":
        """Two files of UTF-8 with as many lines, plain or packed with gzip or xz.

        Only ``\\n`` and ``\\r\\n`` end a line: a lone ``\\r`` or U+2028 inside one breaks nothing.
        """
        texts = [lines_of(read_text(Path(path))) for path in (source, target)]
        counts = [len(lines) for lines in texts]
        if counts[0] != counts[1]:
            raise DataError(
                f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}; line i of one "
                "must be line i of the other, so give two files that belong together"
            )
        if counts[0] == 0:
            raise DataError(f"{source} and {target} hold no line; give files with one pair a line")
        return cls(*texts)

    def __len__(self) -> int:
        return len(self.source)

    def __add__(self, other: "ParallelText") -> "ParallelText":
        return ParallelText([*self.source, *other.source], [*self.target, *other.target])


class ParallelSplits(NamedTuple):
    """The three splits of a parallel corpus."""

    train: ParallelText
    valid: ParallelText
    test: ParallelText
