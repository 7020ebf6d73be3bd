"""Ask about a column that seems to tell which rows belong together, where the data dictionary has none of kind `group`.

Several visits of a patient would count as so many patients, and edges seem much surer than they are. A column is asked
about if it is no variable, is called like an identifier of patients, has repeated values, and rows with equal values
are alike: the variance of some variable between them is beyond chance (one-way analysis of variance, F test).

What is asked stays on the site's own terminal: no run and no message has any of it.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from fedbnsl.console.shown import shown
from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.checks import Oddity
from fedbnsl_client.data.reading import MISSING, GroupReading
from fedbnsl_client.data.sources.source import Source

_MOST_ROWS = 1_000_000  # the first ones tell
_FEWEST_GROUPS = 10  # a column with fewer values tells no patients apart
_LEVEL = 0.01  # chance that rows are called alike, over all variables
_ROUNDING = 1e-12
_NAMES = frozenset(
    [
        "id",
        "ids",
        "pid",
        "patid",
        "patientid",
        "subjid",
        "subject",
        "subjectid",
        "usubjid",
        "studyid",
        "recordid",
        "caseid",
        "patient",
        "patnr",
        "patientennummer",
        "fallnummer",
        "mrn",
        "uuid",
        "identifier",
        "nr",
        "index",
        "key",
    ]
)


def names_records(name: str) -> bool:
    """Whether a column is called like an identifier of patients or records."""
    words = [word for word in re.split(r"[^a-z]+", name.casefold()) if word]
    return not _NAMES.isdisjoint(words) or words[-1:] == ["number"]


def may_tell_groups(name: str, n_values: int, *, repeat: bool) -> bool:
    """Whether a column with so many values may tell apart patients of several rows; `repeat`: whether some do."""
    return repeat and n_values > _FEWEST_GROUPS and names_records(name)


def unused_identifiers(names: Sequence[str], used: Collection[str], dictionary: Dictionary) -> list[str]:
    """Columns that are called like identifiers, and are not used; none where the dictionary has a group."""
    return [] if dictionary.rows.group else [name for name in names if name not in used and names_records(name)]


def of_source(
    source: Source, header: Sequence[str], used: Collection[str], dictionary: Dictionary, X: Matrix
) -> Iterator[Oddity]:
    """What to ask of a table, of which the columns `used` have become X. It is read again where a name tells to.

    X are records in another order where the dictionary has a time: then it is not tested whether rows are alike.
    """
    for name in unused_identifiers(header, used, dictionary):
        codes: list[Matrix] = []
        with suppress(DataError):  # a column of no use to the run refuses nothing
            for block in source.codes(header, [header.index(name)], [GroupReading(MISSING)]):
                codes.append(block[:, 0].copy())
                if sum(map(len, codes)) >= _MOST_ROWS:
                    break
            yield from asked({name: np.concatenate(codes)}, None if dictionary.rows else X)


def asked(groups: Mapping[str, Matrix], X: Matrix | None) -> Iterator[Oddity]:
    """What to ask of columns by name, of which equal cells have the same (n,) code, NaN where one is missing.

    X: (n, d) values of the variables, NaN where one is missing; None: whether rows are alike is not known.
    """
    for name, codes in groups.items():
        codes = codes[:_MOST_ROWS]
        there = ~np.isnan(codes)
        values, place = np.unique(codes[there], return_inverse=True)
        if not may_tell_groups(name, len(values), repeat=len(values) < len(place)):
            continue
        alike = X is not None
        if X is not None and not _are_alike(place, (X[: len(codes), k][there] for k in range(X.shape[1])), X.shape[1]):
            continue
        yield Oddity(
            None,
            f"column {shown(repr(name), 60)}: {len(values):,} values in {len(place):,} rows"
            f"{', and rows with the same one are alike' * alike}: do several rows belong to one patient? "
            "kind = 'group' in the data dictionary makes one record of them, at all sites; otherwise rows count as "
            "independent, and edges seem much surer than they are",
        )


def _are_alike(place: Index, columns: Iterable[Matrix], d: int) -> bool:
    """Whether some of d columns vary more between groups than chance lets them; `place`: (n,) groups of the rows."""
    from scipy.special import fdtrc  # takes long to load

    for column in columns:
        there = ~np.isnan(column)
        if not there.any():
            continue
        x = column[there] - column[there].mean()
        sizes = np.bincount(place[there])
        n, n_groups = x.size, int((sizes > 0).sum())
        if not 1 < n_groups < n:
            continue
        sums: Matrix = np.asarray(np.bincount(place[there], x), dtype=np.float64)
        total, between = float(x @ x), float((sums**2 / np.maximum(sizes, 1)).sum())
        within = max(total - between, _ROUNDING * total)  # what a patient always has the same of leaves nothing
        f = between / (n_groups - 1) / (within / (n - n_groups)) if total else 0.0
        if d * np.asarray(fdtrc(n_groups - 1, n - n_groups, f), dtype=np.float64) < _LEVEL:
            return True
    return False
