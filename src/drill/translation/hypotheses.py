"""The translations of a split in the folder of a run, and by which search they were made."""

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from drill.errors import RunFolderError
from drill.training.run.folder import RunFolder


@dataclass(frozen=True)
class DecodingInfo:
    """How translations were made; only those of one search compare."""

    beam: int
    length_penalty: float
    weights: str  # best, averaged or last

    @property
    def search(self) -> str:
        return f"beam {self.beam} and length penalty {self.length_penalty:g}"


def keep_hypotheses(
    folder: RunFolder, split: str, language: str, lines: Iterable[str], made: DecodingInfo
) -> None:
    """Write translations in place of those that are there, and beside them how they were made."""
    path = folder.hypotheses(split, language)
    folder.write_lines(path, lines)
    told = {**asdict(made), "checksum": zlib.crc32(path.read_bytes())}
    folder.write_json(folder.hypotheses_made(split, language), told)


def read_decoding_info(folder: RunFolder, split: str, language: str) -> DecodingInfo | None:
    """Of the translations that are there; None where nobody knows.

    Runs of old have not told, and who is killed between two files has told of other translations.
    """
    path = folder.hypotheses_made(split, language)
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_bytes())
        checksum = told.pop("checksum")
        made = DecodingInfo(int(told["beam"]), float(told["length_penalty"]), str(told["weights"]))
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
        raise RunFolderError(
            f"{path}: is not what `drill evaluate` writes; restore it from a copy, or remove it"
        ) from None
    return made if checksum == zlib.crc32(folder.hypotheses(split, language).read_bytes()) else None
