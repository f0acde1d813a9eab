"""English and German sentences about numbers, dates, amounts and times: pairs without a download.

The packages num2words and babel write the values in both languages, templates the sentences around
them. An English sentence has one German sentence, so a model can learn to be right every time; the
values are so many that the sentences it is tested on are new to it.
"""

import hashlib
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any

from drill.data.optional_packages import import_optional
from drill.data.parallel.parallel_text import ParallelSplits, ParallelText
from drill.data.text.catalog import SPLITS
from drill.errors import DataError, check_value

Pair = tuple[str, str]  # English, German


def _pairs(table: str) -> tuple[Pair, ...]:
    """``English = German``, separated by line ends or semicolons."""
    rows = (row.split(" = ") for row in table.replace(";", "\n").strip().split("\n"))
    return tuple((english.strip(), german.strip()) for english, german in rows)


SUBJECTS = _pairs(
    """Anna = Anna; Peter = Peter; Maria = Maria; Paul = Paul; Clara = Clara; Martin = Martin
    Jonas = Jonas; My sister = Meine Schwester; Our neighbour = Unser Nachbar
    The teacher = Die Lehrerin; The old sailor = Der alte Seemann"""
)
DEEDS = _pairs(
    """bought = kaufte; sold = verkaufte; counted = zählte; found = fand; saw = sah
    lost = verlor"""
)
THINGS = _pairs(
    """apples = Äpfel; books = Bücher; letters = Briefe; stamps = Briefmarken; chairs = Stühle
    bottles = Flaschen; tickets = Karten; trees = Bäume; coins = Münzen; boxes = Kisten"""
)
GOODS = _pairs(  # the German ones in the accusative
    """the bicycle = das Fahrrad; the coat = den Mantel; the lamp = die Lampe
    two tickets = zwei Karten; the old piano = das alte Klavier; the journey = die Reise"""
)
QUANTITIES = _pairs(
    """Turnover = Der Umsatz; Production = Die Produktion; The price of bread = Der Brotpreis
    The number of visitors = Die Zahl der Besucher; The rent = Die Miete"""
)
MOVES = _pairs("rose = stieg; fell = sank")
CITIES = _pairs(
    """Berlin = Berlin; Hamburg = Hamburg; Munich = München; Cologne = Köln; Vienna = Wien
    Zurich = Zürich; Prague = Prag; Warsaw = Warschau; Geneva = Genf; Milan = Mailand"""
)
CLOCK = _pairs(  # every five minutes, of this hour and of the next one
    """{h} o'clock = {h} Uhr; five past {h} = fünf nach {h}; ten past {h} = zehn nach {h}
    a quarter past {h} = Viertel nach {h}; twenty past {h} = zwanzig nach {h}
    twenty-five past {h} = fünf vor halb {next}; half past {h} = halb {next}
    twenty-five to {next} = fünf nach halb {next}; twenty to {next} = zwanzig vor {next}
    a quarter to {next} = Viertel vor {next}; ten to {next} = zehn vor {next}
    five to {next} = fünf vor {next}"""
)
TEMPLATES = {
    "words": _pairs("""{words} = {words}
        In words, {digits} is {words}. = In Worten ist {digits} {words}.
        In digits, {words} is {digits}. = In Ziffern ist {words} {digits}."""),
    "count": _pairs("{who} {did} {number} {things}. = {who} {did} {number} {things}."),
    "ordinal": _pairs("""{who} is in {nth} place. = {who} ist auf dem {nth} Platz.
        {who} lives on the {nth} floor. = {who} wohnt im {nth}n Stock.
        {who} finished in {nth} place. = {who} belegte den {nth}n Platz.
        {who} is reading the {nth} page. = {who} liest die {nth} Seite.
        Today is the {nth} day. = Heute ist der {nth} Tag."""),
    "date": _pairs("""{day} = {day}
        {weekday}, {day} = {weekday}, {day}
        {who} was born on {day}. = {who} wurde am {day} geboren.
        The letter is dated {day}. = Der Brief ist auf den {day} datiert.
        The meeting is on {weekday}, {day}. = Die Sitzung ist am {weekday}, dem {day}.
        Please reply by {short}. = Bitte antworten Sie bis zum {short}."""),
    "spoken date": _pairs("""
        {who} arrived on the {nth} of {month}, {year}. = {who} kam am {nth}n {month} {year} an."""),
    "amount": _pairs("""{amount} = {amount}
        The ticket costs {amount}. = Die Karte kostet {amount}.
        {who} paid {amount} for {what}. = {who} zahlte {amount} für {what}."""),
    "spoken amount": _pairs("""
        {who} owes us {e} euros and {c} cents. = {who} schuldet uns {e} Euro und {c} Cent."""),
    "time": _pairs("""The train leaves at {at}. = Der Zug fährt um {at} Uhr ab.
        {who} gets up at {at}. = {who} steht um {at} Uhr auf.
        The shop is open from {at} to {to}. = Das Geschäft ist von {at} bis {to} Uhr geöffnet."""),
    "spoken time": _pairs("""
        {who} is coming at {time} on {weekday}. = {who} kommt am {weekday} um {time}."""),
    "percentage": _pairs(
        "{what} {rose} by {share}% in {year}. = {what} {rose} {year} um {share} %."
    ),
    "distance": _pairs("""
        It is {far} kilometres from {a} to {b}. = Von {a} nach {b} sind es {far} Kilometer."""),
    "sum": _pairs("{a} plus {b} is {c}. = {a} plus {b} ist {c}."),
}
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
    match kind:
        case "words":
            number = _number(random)
            values = {"digits": write.digits(number), "words": write.words(number)}
        case "count":
            values = {"who": pick(SUBJECTS), "did": pick(DEEDS), "things": pick(THINGS)}
            values["number"] = pick((write.words, write.digits))(_number(random, 5))
        case "ordinal":
            number, who = random.randint(1, 300), pick(SUBJECTS)
            in_digits = random.random() < 0.3
            templates = templates[:1] if in_digits else templates[1:]
            nth = write.words(number, "ordinal_num" if in_digits else "ordinal")
            values = {"who": who, "nth": nth}
        case "date":
            day = _day(random)
            values = {"day": write.day(day), "weekday": write.day(day, "EEEE", "EEEE")}
            values["short"] = write.day(day, "MM/dd/yyyy", "dd.MM.yyyy")
            values["who"] = pick(SUBJECTS)
        case "spoken date":
            day = _day(random)
            values = {"who": pick(SUBJECTS), "month": write.day(day, "MMMM", "MMMM")}
            values["nth"] = write.words(day.day, "ordinal")
            values["year"] = write.words(day.year, "year")
        case "amount":
            cents = random.randrange(1, 10 ** random.randint(3, 7))
            amount = write.amount(cents, pick(("EUR", "USD", "GBP", "CHF")))
            values = {"amount": amount, "who": pick(SUBJECTS), "what": pick(GOODS)}
        case "spoken amount":
            values = {"e": write.words(_number(random, 4)), "c": write.words(random.randint(2, 99))}
            values["who"] = pick(SUBJECTS)
        case "time":
            at, to = (write.clock(*divmod(m, 60)) for m in sorted(random.sample(range(1440), 2)))
            values = {"at": at, "to": to, "who": pick(SUBJECTS)}
        case "spoken time":
            hour, template = random.randint(1, 12), pick(CLOCK)
            h, following = write.words(hour), write.words(hour % 12 + 1)
            if template is CLOCK[0] and hour == 1:
                h = h[0], "ein"
            values = {"time": _fill(template, {"h": h, "next": following})}
            values |= {"weekday": write.day(_day(random), "EEEE", "EEEE"), "who": pick(SUBJECTS)}
        case "percentage":
            values = {"share": write.digits(Decimal(random.randrange(1, 1000)) / 10)}
            values |= {"what": pick(QUANTITIES), "rose": pick(MOVES)}
            values["year"] = (str(random.randint(1850, 2089)),) * 2
        case "distance":
            values = dict(zip("ab", random.sample(CITIES, 2), strict=True))
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
    wanted = dict(zip(SPLITS, (train, valid, test), strict=True))
    found: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for split, count in wanted.items():
        check_value(count >= 1, f"the pairs of {split}", "at least 1", count, DataError)
    for split, pair in _drawn(seed):
        if len(found[split]) < wanted[split]:
            found[split].append(pair)
        elif all(len(found[each]) == wanted[each] for each in SPLITS):
            break
    return ParallelSplits(*(ParallelText.from_pairs(found[split]) for split in SPLITS))


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
