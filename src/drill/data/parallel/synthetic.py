"""English and German sentences about numbers, dates, amounts and times: pairs without a download.

The packages num2words and babel write the values in both languages, templates the sentences around
them. An English sentence has one German sentence, so a model can learn to be right every time; the
values are so many that the sentences it is tested on are new to it.
"""

import hashlib
import tomllib
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from importlib import resources
from random import Random
from typing import Any

from drill.data.catalog import SPLITS
from drill.data.optional_packages import import_optional
from drill.data.parallel.parallel_text import ParallelSplits, ParallelText
from drill.errors import DataError, check_value

Pair = tuple[str, str]  # English, German


def _pairs(rows: list[list[str]]) -> tuple[Pair, ...]:
    return tuple((english, german) for english, german in rows)


_TABLES: dict[str, Any] = tomllib.loads(
    resources.files("drill.data.parallel").joinpath("synthetic.toml").read_text("utf-8")
)
TEMPLATES = {kind: _pairs(rows) for kind, rows in _TABLES.pop("templates").items()}
WORDS = {name: _pairs(rows) for name, rows in _TABLES.items()}
KINDS = tuple(TEMPLATES)


class Writer:
    """Values in English and German, in digits and in words."""

    def __init__(self) -> None:
        modules = (
            import_optional(name, "the corpus of numbers and dates needs", "num2words", "babel")
            for name in ("num2words", "babel.dates", "babel.numbers")
        )
        self._words, self._dates, self._numbers = modules

    @cache  # noqa: B019 - there is one writer
    def words(self, number: int, kind: str = "cardinal") -> Pair:
        written = self._words.num2words
        return written(number, lang="en", to=kind), written(number, lang="de", to=kind)

    def digits(self, number: int | Decimal) -> Pair:
        return self._both(self._numbers.format_decimal, number)

    def amount(self, cents: int, currency: str) -> Pair:
        return self._both(self._numbers.format_currency, Decimal(cents) / 100, currency)

    def day(self, day: date, english: str = "MMMM d, y", german: str = "d. MMMM y") -> Pair:
        written = self._dates.format_date
        return written(day, english, locale="en_US"), written(day, german, locale="de_DE")

    def clock(self, hour: int, minute: int) -> Pair:
        return self._both(self._dates.format_time, time(hour, minute), "short")

    def _both(self, write: Callable[..., str], *values: Any) -> Pair:
        english, german = (  # with ordinary spaces
            write(*values, locale=locale).replace("\xa0", " ").replace("\u202f", " ")
            for locale in ("en_US", "de_DE")
        )
        return english, german


def _number(random: Random, most_digits: int = 7) -> int:
    """At least 2, each number of digits as likely as the next.

    Left out is where num2words errs (hunderteinstausend) or German has several forms (101 in words
    before a noun).
    """
    while True:
        number = random.randrange(10 ** random.randint(1, most_digits))
        if number > 1 and number % 100 != 1 and (number // 1000) % 100 != 1:
            return number


def _day(random: Random) -> date:
    return date(1850, 1, 1) + timedelta(random.randrange(365 * 240))


def _fill(template: Pair, values: dict[str, Pair]) -> Pair:
    english, german = (
        side.format_map({name: value[i] for name, value in values.items()})
        for i, side in enumerate(template)
    )
    return english, german


def sentence(kind: str, random: Random, write: Writer) -> Pair:
    """A sentence of one of ``KINDS`` with new values.

    The order of the draws is part of the corpus: another order gives another text.
    """
    templates, pick = TEMPLATES[kind], random.choice
    values: dict[str, Pair]

    def word(name: str) -> Pair:
        return pick(WORDS[name])

    match kind:
        case "words":
            number = _number(random)
            values = {"digits": write.digits(number), "words": write.words(number)}
        case "count":
            values = {"who": word("subjects"), "did": word("deeds"), "things": word("things")}
            values["number"] = pick((write.words, write.digits))(_number(random, 5))
        case "ordinal":
            number, who = random.randint(1, 300), word("subjects")
            in_digits = random.random() < 0.3
            templates = templates[:1] if in_digits else templates[1:]
            nth = write.words(number, "ordinal_num" if in_digits else "ordinal")
            values = {"who": who, "nth": nth}
        case "date":
            day = _day(random)
            values = {"day": write.day(day), "weekday": write.day(day, "EEEE", "EEEE")}
            values["short"] = write.day(day, "MM/dd/yyyy", "dd.MM.yyyy")
            values["who"] = word("subjects")
        case "spoken date":
            day = _day(random)
            values = {"who": word("subjects"), "month": write.day(day, "MMMM", "MMMM")}
            values["nth"] = write.words(day.day, "ordinal")
            values["year"] = write.words(day.year, "year")
        case "amount":
            cents = random.randrange(1, 10 ** random.randint(3, 7))
            amount = write.amount(cents, pick(("EUR", "USD", "GBP", "CHF")))
            values = {"amount": amount, "who": word("subjects"), "what": word("goods")}
        case "spoken amount":
            values = {"e": write.words(_number(random, 4)), "c": write.words(random.randint(2, 99))}
            values["who"] = word("subjects")
        case "time":
            at, to = (write.clock(*divmod(m, 60)) for m in sorted(random.sample(range(1440), 2)))
            values = {"at": at, "to": to, "who": word("subjects")}
        case "spoken time":
            hour, template = random.randint(1, 12), word("clock")
            h, following = write.words(hour), write.words(hour % 12 + 1)
            if template is WORDS["clock"][0] and hour == 1:
                h = h[0], "ein"
            values = {"time": _fill(template, {"h": h, "next": following})}
            values |= {"weekday": write.day(_day(random), "EEEE", "EEEE"), "who": word("subjects")}
        case "percentage":
            values = {"share": write.digits(Decimal(random.randrange(1, 1000)) / 10)}
            values |= {"what": word("quantities"), "rose": word("moves")}
            values["year"] = (str(random.randint(1850, 2089)),) * 2
        case "distance":
            values = dict(zip("ab", random.sample(WORDS["cities"], 2), strict=True))
            values["far"] = write.digits(Decimal(random.randrange(11, 20_000)) / 10)
        case _:  # a sum
            a, b = _number(random, 3), _number(random, 3)
            first = tuple(word.capitalize() for word in write.words(a))
            values = {"a": (first[0], first[1]), "b": write.words(b), "c": write.words(a + b)}
    return _fill(templates[0] if len(templates) == 1 else pick(templates), values)


def numbers_and_dates_corpus(
    train: int = 20_000, valid: int = 500, test: int = 500, seed: int = 1
) -> ParallelSplits:
    """The generated corpus, English to German; a larger one continues a smaller one.

    What a sentence says decides its split, in 8, 1 and 1 of 10 cases: no sentence of one split is
    in another, whatever the seeds.

    Args:
        train: training pairs.
        valid: validation pairs.
        test: test pairs.
        seed: of the random numbers.

    Returns:
        The three splits.
    """
    sizes = dict(zip(SPLITS, (train, valid, test), strict=True))
    pairs: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for split, count in sizes.items():
        check_value(count >= 1, f"the pairs of {split}", "at least 1", count, DataError)
    for split, pair in _drawn(seed):
        if len(pairs[split]) < sizes[split]:
            pairs[split].append(pair)
        elif all(len(pairs[name]) == sizes[name] for name in SPLITS):
            break
    return ParallelSplits(
        *(ParallelText(*map(list, zip(*pairs[split], strict=True))) for split in SPLITS)
    )


def _drawn(seed: int) -> Iterator[tuple[str, Pair]]:
    """Different pairs without end, each with its split."""
    random, write = Random(seed), Writer()
    seen: set[str] = set()
    while True:
        pair = sentence(random.choice(KINDS), random, write)
        if pair[0] not in seen:
            seen.add(pair[0])
            tenth = hashlib.sha256(pair[0].encode("utf-8")).digest()[0] * 10 // 256
            yield SPLITS[max(0, tenth - 7)], pair
