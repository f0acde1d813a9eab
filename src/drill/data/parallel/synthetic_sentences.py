"""Sentences around numbers, dates, amounts and times, drawn at random in English and German.

An English sentence has one German sentence. German names stand for the German half of a pair.
"""

import importlib
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any

from drill.data.extras import lacking

Pair = tuple[str, str]
"""English, German."""

SUBJECTS = (
    *((name, name) for name in ("Anna", "Peter", "Maria", "Paul", "Clara", "Martin", "Jonas")),
    ("My sister", "Meine Schwester"),
    ("Our neighbour", "Unser Nachbar"),
    ("The teacher", "Die Lehrerin"),
    ("The old sailor", "Der alte Seemann"),
)
DEEDS = (
    ("bought", "kaufte"),
    ("sold", "verkaufte"),
    ("counted", "zählte"),
    ("found", "fand"),
    ("saw", "sah"),
    ("lost", "verlor"),
)
THINGS = (
    ("apples", "Äpfel"),
    ("books", "Bücher"),
    ("letters", "Briefe"),
    ("stamps", "Briefmarken"),
    ("chairs", "Stühle"),
    ("bottles", "Flaschen"),
    ("tickets", "Karten"),
    ("trees", "Bäume"),
    ("coins", "Münzen"),
    ("boxes", "Kisten"),
)
GOODS = (  # the German ones in the accusative
    ("the bicycle", "das Fahrrad"),
    ("the coat", "den Mantel"),
    ("the lamp", "die Lampe"),
    ("two tickets", "zwei Karten"),
    ("the old piano", "das alte Klavier"),
    ("the journey", "die Reise"),
)
QUANTITIES = (
    ("Turnover", "Der Umsatz"),
    ("Production", "Die Produktion"),
    ("The price of bread", "Der Brotpreis"),
    ("The number of visitors", "Die Zahl der Besucher"),
    ("The rent", "Die Miete"),
)
CITIES = (
    ("Berlin", "Berlin"),
    ("Hamburg", "Hamburg"),
    ("Munich", "München"),
    ("Cologne", "Köln"),
    ("Vienna", "Wien"),
    ("Zurich", "Zürich"),
    ("Prague", "Prag"),
    ("Warsaw", "Warschau"),
    ("Geneva", "Genf"),
    ("Milan", "Mailand"),
)
CLOCK = {  # minutes: English, German; of this hour and of the next one
    0: ("{h} o'clock", "{h} Uhr"),
    5: ("five past {h}", "fünf nach {h}"),
    10: ("ten past {h}", "zehn nach {h}"),
    15: ("a quarter past {h}", "Viertel nach {h}"),
    20: ("twenty past {h}", "zwanzig nach {h}"),
    25: ("twenty-five past {h}", "fünf vor halb {next}"),
    30: ("half past {h}", "halb {next}"),
    35: ("twenty-five to {next}", "fünf nach halb {next}"),
    40: ("twenty to {next}", "zwanzig vor {next}"),
    45: ("a quarter to {next}", "Viertel vor {next}"),
    50: ("ten to {next}", "zehn vor {next}"),
    55: ("five to {next}", "fünf vor {next}"),
}


class Writer:
    """Values in English and German, in digits and in words."""

    def __init__(self) -> None:
        try:
            self._num2words: Any = importlib.import_module("num2words").num2words
            self._dates: Any = importlib.import_module("babel.dates")
            self._numbers: Any = importlib.import_module("babel.numbers")
        except ImportError:
            who_needs = "the corpus of numbers and dates needs"
            raise lacking(who_needs, "num2words", "babel") from None
        self.words = cache(self._words)

    def _words(self, number: int, kind: str = "cardinal") -> Pair:
        english, german = (self._num2words(number, lang=lang, to=kind) for lang in ("en", "de"))
        return english, german

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
        english, german = (write(*values, locale=locale) for locale in ("en_US", "de_DE"))
        return _plain(english), _plain(german)


def _plain(text: str) -> str:
    """Spaces that do not break become ordinary ones."""
    return text.replace("\xa0", " ").replace("\u202f", " ")


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


def _in_words(random: Random, write: Writer) -> Pair:
    number = _number(random)
    (digits, ziffern), (words, wörter) = write.digits(number), write.words(number)
    return random.choice(
        (
            (words, wörter),
            (f"In words, {digits} is {words}.", f"In Worten ist {ziffern} {wörter}."),
            (f"In digits, {words} is {digits}.", f"In Ziffern ist {wörter} {ziffern}."),
        )
    )


def _counted(random: Random, write: Writer) -> Pair:
    (who, wer), (did, tat) = random.choice(SUBJECTS), random.choice(DEEDS)
    things, dinge = random.choice(THINGS)
    written = random.choice((write.words, write.digits))
    number, zahl = written(_number(random, 5))
    return f"{who} {did} {number} {things}.", f"{wer} {tat} {zahl} {dinge}."


def _ordinal(random: Random, write: Writer) -> Pair:
    number = random.randint(1, 300)
    who, wer = random.choice(SUBJECTS)
    if random.random() < 0.3:
        digits = write.words(number, "ordinal_num")
        return f"{who} is in {digits[0]} place.", f"{wer} ist auf dem {digits[1]} Platz."
    words, wort = write.words(number, "ordinal")
    return random.choice(
        (
            (f"{who} lives on the {words} floor.", f"{wer} wohnt im {wort}n Stock."),
            (f"{who} finished in {words} place.", f"{wer} belegte den {wort}n Platz."),
            (f"{who} is reading the {words} page.", f"{wer} liest die {wort} Seite."),
            (f"Today is the {words} day.", f"Heute ist der {wort} Tag."),
        )
    )


def _date(random: Random, write: Writer) -> Pair:
    day = _day(random)
    long, lang = write.day(day)
    who, wer = random.choice(SUBJECTS)
    weekday, wochentag = write.day(day, "EEEE", "EEEE")
    short, kurz = write.day(day, "MM/dd/yyyy", "dd.MM.yyyy")
    return random.choice(
        (
            (long, lang),
            (f"{weekday}, {long}", f"{wochentag}, {lang}"),
            (f"{who} was born on {long}.", f"{wer} wurde am {lang} geboren."),
            (f"The letter is dated {long}.", f"Der Brief ist auf den {lang} datiert."),
            (
                f"The meeting is on {weekday}, {long}.",
                f"Die Sitzung ist am {wochentag}, dem {lang}.",
            ),
            (f"Please reply by {short}.", f"Bitte antworten Sie bis zum {kurz}."),
        )
    )


def _spoken_date(random: Random, write: Writer) -> Pair:
    day = _day(random)
    (nth, wievielte), (year, jahr) = write.words(day.day, "ordinal"), write.words(day.year, "year")
    month, monat = write.day(day, "MMMM", "MMMM")
    who, wer = random.choice(SUBJECTS)
    return (
        f"{who} arrived on the {nth} of {month}, {year}.",
        f"{wer} kam am {wievielte}n {monat} {jahr} an.",
    )


def _amount(random: Random, write: Writer) -> Pair:
    cents = random.randrange(1, 10 ** random.randint(3, 7))
    amount, betrag = write.amount(cents, random.choice(("EUR", "USD", "GBP", "CHF")))
    (who, wer), (what, was) = random.choice(SUBJECTS), random.choice(GOODS)
    return random.choice(
        (
            (amount, betrag),
            (f"The ticket costs {amount}.", f"Die Karte kostet {betrag}."),
            (f"{who} paid {amount} for {what}.", f"{wer} zahlte {betrag} für {was}."),
        )
    )


def _spoken_amount(random: Random, write: Writer) -> Pair:
    euros, euro = write.words(_number(random, 4))
    cents, cent = write.words(random.randint(2, 99))
    who, wer = random.choice(SUBJECTS)
    return (
        f"{who} owes us {euros} euros and {cents} cents.",
        f"{wer} schuldet uns {euro} Euro und {cent} Cent.",
    )


def _time(random: Random, write: Writer) -> Pair:
    early, late = sorted(random.sample(range(24 * 60), 2))
    (first, erste), (last, letzte) = write.clock(*divmod(early, 60)), write.clock(*divmod(late, 60))
    who, wer = random.choice(SUBJECTS)
    return random.choice(
        (
            (f"The train leaves at {first}.", f"Der Zug fährt um {erste} Uhr ab."),
            (f"{who} gets up at {first}.", f"{wer} steht um {erste} Uhr auf."),
            (
                f"The shop is open from {first} to {last}.",
                f"Das Geschäft ist von {erste} bis {letzte} Uhr geöffnet.",
            ),
        )
    )


def _spoken_time(random: Random, write: Writer) -> Pair:
    hour, minute = random.randint(1, 12), random.choice(list(CLOCK))
    (h, stunde), (after, nächste) = write.words(hour), write.words(hour % 12 + 1)
    if minute == 0 and hour == 1:
        stunde = "ein"
    english, german = CLOCK[minute]
    at, um = english.format(h=h, next=after), german.format(h=stunde, next=nächste)
    weekday, wochentag = write.day(_day(random), "EEEE", "EEEE")
    who, wer = random.choice(SUBJECTS)
    return f"{who} is coming at {at} on {weekday}.", f"{wer} kommt am {wochentag} um {um}."


def _percentage(random: Random, write: Writer) -> Pair:
    share, anteil = write.digits(Decimal(random.randrange(1, 1000)) / 10)
    what, was = random.choice(QUANTITIES)
    moved, ging = random.choice((("rose", "stieg"), ("fell", "sank")))
    year = random.randint(1850, 2089)
    return f"{what} {moved} by {share}% in {year}.", f"{was} {ging} {year} um {anteil} %."


def _distance(random: Random, write: Writer) -> Pair:
    (start, anfang), (end, ende) = random.sample(CITIES, 2)
    far, weit = write.digits(Decimal(random.randrange(11, 20_000)) / 10)
    return (
        f"It is {far} kilometres from {start} to {end}.",
        f"Von {anfang} nach {ende} sind es {weit} Kilometer.",
    )


def _sum(random: Random, write: Writer) -> Pair:
    first, second = _number(random, 3), _number(random, 3)
    words = [write.words(each) for each in (first, second, first + second)]
    (a, eins), (b, zwei), (c, drei) = words
    return f"{_capital(a)} plus {b} is {c}.", f"{_capital(eins)} plus {zwei} ist {drei}."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


KINDS: tuple[Callable[[Random, Writer], Pair], ...] = (
    _in_words,
    _counted,
    _ordinal,
    _date,
    _spoken_date,
    _amount,
    _spoken_amount,
    _time,
    _spoken_time,
    _percentage,
    _distance,
    _sum,
)
