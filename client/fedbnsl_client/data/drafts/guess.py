"""What one column seems to be: its kind, its levels, what stands for a missing value, and what a person has to decide.

Whole numbers that take many values measure something, few are grades or codes, and a count is proposed only where there
are zeros and a long tail.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from shlex import quote
from typing import Any, NamedTuple

from fedbnsl.console.shown import shown
from fedbnsl.console.wording import first_few
from fedbnsl.plan.dictionary import Kind
from fedbnsl_client.data.cell_forms import BELOW_A_LIMIT, form_of, is_compact_date, is_mark, says_not_known
from fedbnsl_client.data.drafts.column_cells import MOST_TEXTS, ColumnCells, written
from fedbnsl_client.data.drafts.yes_and_no import truth
from fedbnsl_client.data.forgotten_groups import may_tell_groups, names_records
from fedbnsl_client.data.repeats import may_number_rows
from fedbnsl_client.data.suspected_codes import CODES_OF_MISSING

MOST_LEVELS = 20
_FEW_WHOLE_NUMBERS = 10
_MOSTLY = 0.9  # share of numbers beyond which other cells are taken for codes of missing values
_SKEWED = 0.8
_VERY_SKEWED = 3.0
_RARE = 20
_ENOUGH_ROWS = 200  # below, all levels are rare, and whole numbers that measure may occur once each
_FEW_ROWS = 20

_DATES = (
    "kind = 'time' orders the rows of a patient by them (one column at most), and with trend = true it is a variable, "
    "too; of others, make a number of days or years since a public day"
)
_RANGE = "range = [lowest, highest]  # possible values, from public knowledge, never from the data"
_FIRST_TIER = "does nothing in the tables act on it? then say tier = 1, so that no arrow points at it"
TURNS = "another transform can turn directions, so that both are worth a run"
_ORDERED = "if the levels have an order, it is ordinal: put them in it, the lowest first"
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")
_GRADES = (  # words that are usual for grades; words between bars have one place
    "very low, low, medium|moderate|middle|intermediate|normal, high, very high",
    "none|no|absent, minimal, mild|light, moderate, severe|heavy, very severe",
    "never, rarely|seldom, sometimes|occasionally, often|frequently, very often, always",
    "very poor, poor, fair, good, very good, excellent",
    "strongly disagree, disagree, neutral, agree, strongly agree",
    "very small, small, medium, large, very large",
    "underweight, normal, overweight, obese",
    "primary, secondary, tertiary",
)
_NAMES_OF_WEIGHTS = re.compile(r"w(ei)?gh?t(s)?$|wgt|pweight|sampw", re.IGNORECASE)
_NAMES_OF_CODES = re.compile(r"(^|[^a-z])(post(al|c|leit)|zip|plz|icd)|codes?([^a-z]|$)")
_FIVE_DIGITS = 10_000
_NAMES_OF_FIRST_TIER = re.compile(
    r"(^|[^a-z])(age|sex|gender|birth|born|race|ethnic|ancestr|genotype|blood[ _]?(group|type)|native)", re.IGNORECASE
)


@dataclass(frozen=True)
class Guess:
    """What one column seems to be.

    Attributes
    ----------
    kind
        None: no entry can be made of it.
    levels
        In their order; empty: the cells are numbers.
    transform
        Empty: none.
    spellings
        By level, how tables write it, where that is not the level itself.
    missing
        Cells that stand for a missing value, and how many do.
    left_out
        Why it is no variable; empty: it is one.
    asks
        What a person has to decide; said on the terminal, too.
    comments
        What may help to do so.
    """

    kind: Kind | None
    levels: tuple[str, ...] = ()
    transform: str = ""
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    missing: Mapping[str, int] = field(default_factory=dict[str, int])
    left_out: str = ""
    asks: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()

    @property
    def is_used(self) -> bool:
        """Whether it is a variable."""
        return self.kind is not None and not self.left_out

    @property
    def settings(self) -> dict[str, Any]:
        """What the dictionary says of it."""
        if self.levels:
            return {"kind": self.kind, "levels": list(self.levels)}
        transform = {"transform": self.transform} if self.transform else {}
        return {"kind": self.kind, **({"unit": ""} if self.kind == "continuous" else {}), **transform}

    @property
    def n_columns(self) -> int:
        """How many columns a run makes of it."""
        return len(self.levels) - 1 if self.kind == "nominal" else 1


def guess(name: str, cells: ColumnCells, *, merge_below: int = 0) -> Guess:
    """What a column seems to be.

    `merge_below`: levels of a nominal variable in fewer rows become one.
    """
    marks = {text: n for text, n in cells.texts.items() if is_mark(text, among_words=False)}
    n_words = cells.n_texts - sum(marks.values())
    holds_numbers = cells.n_numbers >= _MOSTLY * (cells.n_numbers + n_words) and (
        not n_words or len(cells.numbers) > _FEW_WHOLE_NUMBERS
    )
    limits = Counter({text: n for text, n in cells.texts.items() if form_of(text) == "limit"})
    if (
        not holds_numbers
        and limits
        and len(cells.numbers) > _FEW_WHOLE_NUMBERS
        and (cells.n_numbers + limits.total() >= _MOSTLY * (cells.n_numbers + n_words))
    ):
        found = _with_limits(name, cells, limits)
    elif not cells.n_numbers or not holds_numbers:
        found = _of_words(name, cells, merge_below)
    else:
        found = _of_numbers(name, cells)
        found = replace(found, missing={**marks, **found.missing})
    if found.is_used and _NAMES_OF_FIRST_TIER.search(name):
        found = replace(found, asks=(*found.asks, _FIRST_TIER))
    return replace(found, missing={**cells.coded, **found.missing})


# ---- numbers -------------------------------------------------------------------------------------------------------


def _of_numbers(name: str, cells: ColumnCells) -> Guess:
    if len(cells.texts) >= MOST_TEXTS:
        return Guess(None, left_out=f"more than {MOST_TEXTS} different texts among its numbers")
    asks = [
        f"{counts.total():,} cell(s) among its numbers are {form} ({_quoted(counts)}): they count as missing, unless "
        "you write numbers in their place" + f". {BELOW_A_LIMIT}" * any(form_of(text) == "limit" for text in counts)
        for form, counts in cells.words_by_form().items()
    ]
    found = _kind_of_numbers(name, cells)
    if found.is_used:
        asks += [f"{said}: does it stand for a missing value?" for said in cells.suspected().values()]
    return replace(found, missing=cells.words, asks=(*asks, *found.asks))


def _with_limits(name: str, cells: ColumnCells, limits: Counter[str]) -> Guess:
    """Of numbers with many limits: what to put in their place changes the results, so that a person has to choose."""
    found = _kind_of_numbers(name, cells)
    option = quote(shown(f"{name}={min(limits)}", 100))
    reason = (
        f"{limits.total():,} of {cells.n:,} cells are limits, such as {_quoted(limits)}: write a number of your choice "
        f"in their place in the table, such as the limit. Counted as missing (--missing {option}), they bias effects, "
        "as they are missing for what they are"
    )
    return replace(found, left_out=found.left_out or reason)


def _kind_of_numbers(name: str, cells: ColumnCells) -> Guess:
    numbers, n = cells.numbers, cells.n_numbers
    if len(numbers) < 2:
        return Guess(None, left_out="it has no two values")
    if len(numbers) == 2:
        levels = tuple(map(written, sorted(numbers)))
        asks = tuple(_rare({written(x): k for x, k in numbers.items()}))
        return Guess("binary", levels, asks=asks, comments=(_counts_as_1(levels[1]),) if levels != ("0", "1") else ())
    if not cells.whole:
        return Guess("continuous", comments=(_RANGE, *_tail(cells)))
    if n >= _FEW_ROWS and all(map(is_compact_date, numbers)):
        return Guess("time", left_out=f"dates (yyyymmdd): {_DATES}")
    if reason := _numbers_rows(name, cells):
        return Guess("continuous", left_out=reason, comments=(_RANGE,))
    if repeated := _repeated_records(name, len(numbers), cells):
        return Guess("group", left_out=repeated)
    asks = tuple(_asks_of_whole(name, cells))
    # A code such as 99 among scores is no long tail.
    count_like = cells.skewness(without=cells.suspected()) >= _SKEWED and min(numbers) == 0
    if len(numbers) <= _FEW_WHOLE_NUMBERS and 3 * len(numbers) <= n and not (count_like and len(numbers) > 3):
        found = _of_few_numbers(numbers)
        return replace(found, asks=(*asks, *found.asks))
    if count_like:
        zeros = f"{numbers[0.0] / n:.0%} are 0, and the others have a long tail"
        said = f'{zeros}: it is used as log(1 + count); transform = "none" uses it as it is; {TURNS}'
        return Guess("count", transform="log1p", asks=asks, comments=(_RANGE, said))
    counted = "whole numbers: if they say how often something happened, it is a count"
    return Guess("continuous", asks=asks, comments=(_RANGE, counted, *_tail(cells)))


def _of_few_numbers(numbers: Counter[float]) -> Guess:
    values = sorted(numbers)
    levels, steps = tuple(map(written, values)), {b - a for a, b in pairwise(values)}
    if len(steps) == 1 or values[-1] - values[0] <= len(values):
        said = f"{len(values)} values, taken for grades: if they are codes without an order, it is nominal; if they "
        return Guess("ordinal", levels, comments=(said + "count or measure something, a count or continuous",))
    said = "few values with gaps, taken for codes: if they are grades, it is ordinal; if measured, continuous"
    asks = tuple(_rare({written(x): k for x, k in numbers.items()}, can_merge=False))
    return Guess("nominal", levels, asks=asks, comments=(said,))


def _occurs_once(cells: ColumnCells) -> bool:
    return may_number_rows(cells.n_numbers, most=1 if cells.once else 2, least=min(cells.numbers))


def _numbers_rows(name: str, cells: ColumnCells) -> str:
    """Why whole numbers seem to number the records; empty: they do not."""
    n = cells.n_numbers
    if not _occurs_once(cells):
        return ""
    is_dense = max(cells.numbers) - min(cells.numbers) < 2 * n
    if is_dense or cells.rising or n >= _ENOUGH_ROWS or names_records(name):
        return f"whole numbers, none of them twice in {n:,} rows: an identifier or row number?"
    return ""


def _asks_of_whole(name: str, cells: ColumnCells) -> Iterator[str]:
    distinct, n = len(cells.numbers), cells.n_numbers
    if names_records(name):
        yield "an identifier of patients or records is no variable: is it one?"
    elif _occurs_once(cells):
        yield f"none of its {n} values occurs twice: an identifier is no variable; is it one?"
    elif n >= _ENOUGH_ROWS and 4 * distinct > n and _NAMES_OF_WEIGHTS.search(name):
        yield f"{distinct:,} values in {n:,} rows: a sampling weight is no variable; is it one?"
    elif _NAMES_OF_CODES.search(name.casefold()) or (
        n >= _ENOUGH_ROWS and min(cells.numbers) >= _FIVE_DIGITS and 10 * distinct <= n and not _are_rounded(cells)
    ):
        yield (
            f"{distinct:,} values in {n:,} rows: a code, such as a postcode, measures nothing; if it is one, group it "
            "into a few levels, or take it out"
        )


def _are_rounded(cells: ColumnCells) -> bool:
    """Whether nearly all are multiples of 10, as amounts are and codes are not."""
    return sum(n for number, n in cells.numbers.items() if number % 10 == 0) >= _MOSTLY * cells.n_numbers


def _repeated_records(name: str, distinct: int, cells: ColumnCells) -> str:
    """What to ask where a column that seems to name patients has several rows of one; empty: nothing."""
    if not may_tell_groups(name, distinct, repeat=not cells.once):
        return ""
    return (
        f"{distinct:,} values in {cells.n:,} rows: do several rows belong to one patient? Then take its entry in: "
        "kind = 'group' makes one record of them. Otherwise rows count as independent"
    )


def _tail(cells: ColumnCells) -> Iterator[str]:
    if cells.skewness(without=cells.suspected()) >= _VERY_SKEWED and min(cells.numbers) >= 0:
        transform = "log" if min(cells.numbers) > 0 else "log1p"
        yield f'a long tail: transform = "{transform}" may suit it; {TURNS}'


# ---- words ---------------------------------------------------------------------------------------------------------


def _of_words(name: str, cells: ColumnCells, merge_below: int) -> Guess:
    marks = {text: n for text, n in cells.texts.items() if is_mark(text, among_words=True)}
    spelled = Counter({text: n for text, n in cells.texts.items() if text not in marks})
    spelled.update({written(number): n for number, n in cells.numbers.items()})
    repeated = _repeated_records(name, len(spelled), cells) if len(spelled) > MOST_LEVELS else ""
    found = Guess("group", left_out=repeated) if repeated else _of_spellings(cells, spelled, merge_below)
    asks = [
        f"{n:,} cell(s) say {text!r} and count as missing. If not knowing tells something by itself, keep it as a "
        "level: add it to the levels here, and take it out of `missing` in the column map"
        for text, n in marks.items()
        if says_not_known(text)
    ]
    if found.is_used:
        asks += [
            f"{n:,} cell(s) are {written(number)}, among words: does it stand for a missing value?"
            for number, n in cells.numbers.items()
            if number in CODES_OF_MISSING and (abs(number) > 9 or CODES_OF_MISSING.issuperset(cells.numbers))
        ]
    return replace(found, missing=marks, asks=(*found.asks, *asks))


def _of_spellings(cells: ColumnCells, spelled: Counter[str], merge_below: int) -> Guess:
    if len(spelled) < 2:
        return Guess(None, left_out="it has no two values")
    forms = Counter[str]()
    for text, n in spelled.items():
        if text in cells.texts:
            forms[form_of(text)] += n
    n = spelled.total()
    if forms["date"] >= _MOSTLY * n:
        return Guess("time", left_out=f"dates or times: {_DATES}")
    if forms["decimal comma"] and forms["decimal comma"] + cells.n_numbers >= _MOSTLY * n:
        return Guess(None, left_out="numbers with a decimal comma: save the table with decimal points")
    if cells.overflows or (n >= _FEW_WHOLE_NUMBERS and 2 * len(spelled) > n):
        if cells.n_numbers >= n / 2:
            return Guess(None, left_out=f"numbers and texts ({_quoted(cells.words)}): make numbers of the texts")
        return Guess(None, left_out="nearly every cell has a text of its own: a name, an identifier or free text")
    alike = _alike(spelled)
    counts = Counter({level: sum(spelled[text] for text in texts) for level, texts in alike.items()})
    grades = _roman(alike) or _grades(alike)  # before the merge: a level `other` has no place among them
    merged = _merged(counts, 0 if grades else merge_below)
    spellings = {level: tuple(t for one in ones for t in alike[one]) for level, ones in merged.items()}
    different = {level: texts for level, texts in spellings.items() if texts != (level,)}
    if len(merged) < 2:
        return Guess(None, left_out="it has no two values, but for case and spaces")
    asks = [
        f"{_quoted(texts)} are taken for the level {shown(repr(level), 40)}: spelled alike but for case and spaces"
        for level, texts in alike.items()
        if len(texts) > 1
    ]
    asks += [
        f"{len(ones)} levels in fewer than {merge_below} rows are one, {level!r}"
        for level, ones in merged.items()
        if len(ones) > 1
    ]
    asks += _unmerged(counts, merged, merge_below, grades)
    if len(merged) > MOST_LEVELS:
        return Guess("nominal", tuple(merged), left_out=f"{len(merged)} different texts{_offer(counts)}")
    if grades:
        asks.append(f"taken for grades, in the order {', '.join(grades)}: if they have none, it is nominal")
        return Guess("ordinal", grades, spellings=different, asks=tuple(asks))
    counts = Counter({level: sum(counts[one] for one in ones) for level, ones in merged.items()})
    first = _reference({level: counts[level] for level, ones in merged.items() if len(ones) == 1} or counts)
    merged = {first: merged[first], **merged}
    asks += _rare(counts)
    minus = [text for text in spelled if is_mark(text, among_words=False)]
    asks += [f"is {text!r} a level, or a missing value (--missing {text!r})?" for text in minus]
    kind: Kind = "nominal"
    comments = [f"{shown(repr(first), 40)} comes first: coefficients compare the others with it", _ORDERED]
    if len(merged) == 2:
        kind, comments = "binary", [_counts_as_1(list(merged)[1])]
    return Guess(kind, tuple(merged), spellings=different, asks=tuple(asks), comments=tuple(comments))


def _reference(counts: Mapping[str, int]) -> str:
    """The level that others are compared with: no of yes and no, or none; otherwise the most frequent one."""
    says = {truth(level): level for level in counts}
    if len(counts) == 2 and says.keys() == {True, False}:
        return says[False]
    return next((level for level in counts if level.casefold() == "none"), max(counts, key=counts.__getitem__))


def _counts_as_1(level: str) -> str:
    return f"{shown(repr(level), 40)} counts as 1: turn the levels around if the other should"


def _roman(levels: Collection[str]) -> tuple[str, ...]:
    """Roman numerals in their order; empty: they are others, or two, or have wide gaps."""
    places = {level: _ROMAN.index(level.casefold()) for level in levels if level.casefold() in _ROMAN}
    ordered = sorted(places, key=places.__getitem__)
    is_dense = len(ordered) > 2 and places[ordered[-1]] - places[ordered[0]] <= len(ordered)
    return tuple(ordered) if is_dense and len(ordered) == len(levels) else ()


def _grades(levels: Collection[str]) -> tuple[str, ...]:
    """Usual words for grades in their order; empty: they are others, or two, or two of them have one place."""
    for scale in _GRADES:
        place_of = {word: k for k, words in enumerate(scale.split(", ")) for word in words.split("|")}
        places = {level: place_of.get(" ".join(level.casefold().split())) for level in levels}
        known = {place: level for level, place in places.items() if place is not None}
        if 2 < len(known) == len(levels):
            return tuple(known[place] for place in sorted(known))
    return ()


def _alike(spelled: Counter[str]) -> dict[str, tuple[str, ...]]:
    """Spellings by level, in the order of the levels: words that differ in case and inner spaces alone are one."""
    groups: dict[str, list[str]] = {}
    for text in sorted(spelled, key=lambda text: (-spelled[text], text)):
        key = " ".join(text.casefold().split())
        groups.setdefault(key if len(key) > 1 else text, []).append(text)
    return {texts[0]: tuple(texts) for texts in sorted(groups.values(), key=_in_order)}


def _in_order(texts: list[str]) -> tuple[int, float, str]:
    try:
        return 0, float(texts[0]), texts[0]
    except ValueError:
        return 1, 0.0, texts[0]


def _merged(counts: Counter[str], merge_below: int) -> dict[str, tuple[str, ...]]:
    """By level, those of `counts` that it stands for."""
    rare = [level for level in counts if counts[level] < merge_below]
    if len(rare) < 2 or len(counts) < 3:
        return {level: (level,) for level in counts}
    other = next((level for level in counts if level.casefold() in ("other", "others")), "other")
    kept = {level: (level,) for level in counts if level not in rare and level != other}
    return {**kept, other: tuple(dict.fromkeys([*([other] if other in counts else []), *rare]))}


def _unmerged(
    counts: Counter[str], merged: Mapping[str, tuple[str, ...]], merge_below: int, grades: tuple[str, ...]
) -> Iterator[str]:
    """Say of levels that are rare, and were to be merged, why they are not."""
    rare = [level for level in merged if counts[level] < merge_below]
    if rare and grades:
        yield (
            f"--merge-rare {merge_below}: {_quoted(tuple(rare))} stays, for these are grades, which are one column: to "
            "merge one with its neighbour, say in the column map which level it is"
        )
    elif rare and len(merged) == len(counts):
        why = "two levels are not made one" if len(counts) < 3 else "no other level is rare"
        yield (
            f"--merge-rare {merge_below}: {_quoted(tuple(rare))} stays a level of its own, for {why}: add rows, or say "
            "in the column map which level it is"
        )


class _Offer(NamedTuple):
    below: int
    n_kept: int


def _offer(counts: Counter[str]) -> str:
    """What merging rare levels would come to."""
    offers = [_Offer(below, sum(n >= below for n in counts.values())) for below in (20, 50, 100, 200, 500, 1000, 5000)]
    fit = next((offer for offer in offers if 1 <= offer.n_kept < MOST_LEVELS), None)
    if fit is None:
        return "; a name or free text is no variable"
    return (
        f"; --merge-rare {fit.below} keeps {fit.n_kept} and makes one of those in fewer than {fit.below} rows, "
        f"{len(counts) - fit.n_kept} levels"
    )


def _rare(counts: Mapping[str, int], *, can_merge: bool = True) -> Iterator[str]:
    rare = {level: n for level, n in counts.items() if n < _RARE}
    if not rare or sum(counts.values()) < _ENOUGH_ROWS:
        return
    said = first_few((f"{shown(repr(level), 40)} {n}" for level, n in rare.items()), most=5)
    merge = f"; --merge-rare {_RARE} makes one of them" if can_merge and len(rare) > 1 and len(counts) > 2 else ""
    yield f"levels in few rows tell little: {said}{merge}"


def _quoted(cells: Counter[str] | tuple[str, ...]) -> str:
    return first_few((shown(repr(text), 40) for text in sorted(cells)), most=5)
