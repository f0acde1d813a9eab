"""Translations that the folders of runs keep: which words are right, and whether they compare."""

from collections.abc import Iterable
from pathlib import Path

from drill.cli.display import note
from drill.cli.evaluate_translation import accuracy_bands
from drill.data.parallel.parallel_text import read_lines
from drill.errors import RunFolderError, SettingsError
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.training.run.folder import RunFolder
from drill.training.run.weights import settings_of
from drill.translation.evaluate import DecodingInfo, read_decoding_info
from drill.translation.run import TranslationRun

SPLIT = "test"


def kept_bands(run: TranslationRun) -> dict[str, list[AccuracyBand]]:
    """``accuracy_bands`` of the translations of the test text that the folder of a run keeps."""
    path = run.folder.hypotheses(SPLIT, run.settings.data["target"])
    if not path.exists():
        raise RunFolderError(
            f"{path}: is missing, so nobody knows which words are right; make it with "
            f"`{_again(run.folder.path)}`"
        )
    return accuracy_bands(run, run.split(SPLIT)[0].target, read_lines(path))


def check_same_search(folders: Iterable[Path]) -> None:
    """SettingsError where the kept translations of runs that are to be compared are by different
    searches: `drill evaluate` replaces them, by any search and of any weights."""
    made = {folder: _decoding_info(RunFolder(folder)) for folder in folders}
    told = [(folder, each) for folder, each in made.items() if each is not None]
    for folder, known in made.items():
        if known is None and len(made) > 1:
            note(
                f"{folder}: does not tell by which search its translations were made, so they may "
                f"not compare; `{_again(folder)}` makes them anew"
            )
    for folder, each in told[1:]:
        first, by = told[0]
        if each.search != by.search:
            raise SettingsError(
                f"--bands: the translations of {first} are by {by.search} and those of {folder} by "
                f"{each.search}, so their words do not compare; translate one of them as the "
                f"other, for example with `{_again(folder)} --beam {by.beam} --length-penalty "
                f"{by.length_penalty:g}`"
            )


def _decoding_info(run: RunFolder) -> DecodingInfo | None:
    """``read_decoding_info``; notes weights that the run was not tested by."""
    language = settings_of(run).data["target"]
    if not run.hypotheses(SPLIT, language).exists():  # ``kept_bands`` tells of it
        return None
    made = read_decoding_info(run, SPLIT, language)
    tested = (run.test_row() or {}).get("weights")
    if made is not None and tested not in (None, made.weights):
        note(
            f"{run.path}: its translations are by the {made.weights} weights, and it was tested by "
            f"the {tested} ones; `{_again(run.path)}` makes them anew"
        )
    return made


def _again(folder: Path) -> str:
    return f"drill evaluate {folder} --split {SPLIT}"
