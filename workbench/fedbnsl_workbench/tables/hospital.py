"""Tables as hospitals have them, from a network that is known: far means, mixed units and kinds, gaps, own spellings.

The graph and its weights are those of `synthetic`, and `hospital_law` says how values of all kinds are drawn from them.
Each `Trouble` can be had by itself: graph and noise are the same with and without it. The ranges of the dictionary come
from the law, not from the tables.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.drafts.toml_entry import toml_entry
from fedbnsl_workbench.tables.folder import new_folder, write_table
from fedbnsl_workbench.tables.hospital_law import LEVELS, Law
from fedbnsl_workbench.tables.synthetic import random_weights

Trouble = Literal[
    "means",
    "units",
    "shifts",
    "binary",
    "ordinal",
    "nominal",
    "count",
    "spellings",
    "missing",
    "missing-cells",
    "row-of-999s",
    "unsaid-999s",
]
ALL: tuple[Trouble, ...] = tuple(name for name in get_args(Trouble) if name not in ("missing-cells", "unsaid-999s"))
"""What a hospital has. `missing-cells` leaves hardly a row whole, and is asked for by name, as is `unsaid-999s`: a row
of 999s at a site whose columns.toml does not say that they stand for missing values.
"""

ROWS = (200, 3000, 12_000)
EXPECTED_EDGES = 16

MISSING_SHARE = 0.1
_WITHIN = 6.0  # standard deviations on both sides of the mean that a range allows
_FARTHEST_SHIFT = 2.0  # standard deviations
_MOST_COUNTED = 100.0  # the rate at six standard deviations of the latent

UNITS = {
    "bmi": "kg/m2",
    "smoker": "",
    "pressure": "mmHg",
    "pulse": "1/min",
    "stage": "",
    "crp": "mg/l",
    "glucose": "mmol/l",
    "ward": "",
    "creatinine": "umol/l",
    "visits": "",
    "sodium": "mmol/l",
    "haemoglobin": "g/l",
}
"""The variables, and their units where they are continuous. The names mean nothing: the graph is drawn."""

_KIND_OF: dict[str, Trouble] = {"smoker": "binary", "stage": "ordinal", "ward": "nominal", "visits": "count"}

# What differs at the second and the third site: see `columns.toml`.
_SPELLINGS: dict[int, dict[str, dict[str, Any]]] = {
    1: {
        "pressure": {"column": "Blutdruck"},
        "crp": {"column": "CRP mg/dl", "factor": 10.0},
        "glucose": {"column": "Glukose mg/dl", "factor": 0.0555},
        "smoker": {"column": "Raucher", "levels": {"no": "nein", "yes": "ja"}},
        "stage": {"levels": {level: f"Stadium {level}" for level in LEVELS["ordinal"]}},
        "ward": {
            "column": "Abteilung",
            "levels": dict(zip(LEVELS["nominal"], ("Chirurgie", "Innere", "Neurologie", "Geriatrie"), strict=True)),
        },
        "visits": {"column": "Besuche"},
    },
    2: {
        "creatinine": {"factor": 88.4},
        "haemoglobin": {"column": "Hb", "factor": 10.0},
        "smoker": {"levels": {"no": "0", "yes": "1"}},
        "stage": {"levels": {level: str(k) for k, level in enumerate(LEVELS["ordinal"], start=1)}},
        "ward": {"levels": {level: level[0].upper() for level in LEVELS["nominal"]}},
    },
}
_GAPS = {0: "", 1: "-9", 2: "NA"}
"""How a missing value is written at each site; -9 in its columns.toml alone."""

_SITE_OF_999S = 1


@dataclass(frozen=True, eq=False)
class SiteTable:
    """What one site has.

    Attributes
    ----------
    header
        Names of its columns.
    rows
        Cells as they stand in its file.
    columns
        Content of its columns.toml; empty: nothing differs from the dictionary.
    """

    header: tuple[str, ...]
    rows: list[list[str]]
    columns: dict[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Hospitals:
    """The tables of all sites, and what they were drawn from.

    Attributes
    ----------
    variables
        V names.
    W
        (V, V) true weights between codes, W[i, j] for i -> j.
    dictionary
        Content of dictionary.toml.
    sites
        One table a site.
    """

    variables: tuple[str, ...]
    W: Matrix
    dictionary: dict[str, dict[str, Any]]
    sites: tuple[SiteTable, ...]


def chosen_troubles(names: Collection[str]) -> tuple[Trouble, ...]:
    """Troubles by their names: all if there are none, none if it is "nothing".

    Raises SetupError for a name that is none.
    """
    if not names:
        return ALL
    known = get_args(Trouble)
    wrong = sorted({name for name in names if name not in known and name != "nothing"})
    if wrong or ("nothing" in names and len(set(names)) > 1):
        raise SetupError(f"--with {' --with '.join(wrong or names)}: choose from {', '.join(known)}, or nothing alone")
    return tuple(name for name in known if name in names)


def draw(seed: int, troubles: Collection[Trouble] = ALL, *, rows: Sequence[int] = ROWS) -> Hospitals:
    """Tables of hospitals, one for each number of rows; the same seed gives the same cells."""
    variables, has = tuple(UNITS), frozenset(troubles)
    V = len(variables)
    W = random_weights(V, EXPECTED_EDGES, np.random.default_rng([seed, 0]))
    kinds = {j: str(_KIND_OF[name]) for j, name in enumerate(variables) if _KIND_OF.get(name) in has}
    law = Law(W, kinds, np.random.default_rng([seed, 1]))
    placed = np.random.default_rng([seed, 2])
    means, units = placed.uniform(3.0, 12.0, V), 10.0 ** placed.uniform(-1.0, 1.0, V)
    shifts = placed.uniform(-1.0, 1.0, (len(rows), V))
    unit = units if "units" in has else np.ones(V)
    mean = means * law.std if "means" in has else np.zeros(V)
    moved = (shifts if "shifts" in has else 0.0 * shifts) * [0.5 if j in kinds else _FARTHEST_SHIFT for j in range(V)]
    sites: list[SiteTable] = []
    for k, n in enumerate(rows):
        values = law.sample(np.random.default_rng([seed, 3, k]), n, moved[k])
        for j in range(V):
            if j not in kinds:
                values[:, j] = (values[:, j] + mean[j]) * unit[j]
        sites.append(_site(k, variables, kinds, values, has, np.random.default_rng([seed, 4, k])))
    widest = _WITHIN + (_FARTHEST_SHIFT if "shifts" in has else 0.0)
    middle, half = (law.mean + mean) * unit, widest * law.std * unit
    dictionary = {
        name: _entry(name, kinds.get(j, "continuous"), float(middle[j] - half[j]), float(middle[j] + half[j]))
        for j, name in enumerate(variables)
    }
    return Hospitals(variables, W, dictionary, tuple(sites))


def _entry(name: str, kind: str, low: float, high: float) -> dict[str, Any]:
    if kind in LEVELS:
        return {"kind": kind, "levels": list(LEVELS[kind])}
    if kind == "count":
        return {"kind": kind, "range": [0.0, _MOST_COUNTED]}
    step = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    outward = [_tidy(math.floor(low / step), step), _tidy(math.ceil(high / step), step)]
    return {"kind": kind, "unit": UNITS[name] or "points", "range": outward}


def _tidy(steps: int, step: float) -> float:
    return float(f"{steps * step:.6g}")


def _site(
    k: int,
    variables: Sequence[str],
    kinds: dict[int, str],
    values: Matrix,
    has: frozenset[Trouble],
    rng: np.random.Generator,
) -> SiteTable:
    """What a site has in its file, and what its columns.toml says of it."""
    spelled = _SPELLINGS.get(k, {}) if "spellings" in has else {}
    said = {
        name: {key: value for key, value in spelled.get(name, {}).items() if _applies(key, kinds.get(j, "continuous"))}
        for j, name in enumerate(variables)
    }
    gap = _GAPS.get(k, "NA") if "spellings" in has else "NA"
    codes_of_gaps = [gap] if gap == "-9" and {"missing", "missing-cells"} & has else []
    if "row-of-999s" in has and k == _SITE_OF_999S:
        codes_of_gaps = [*codes_of_gaps, "999"]
    columns: list[list[str]] = []
    for j, name in enumerate(variables):
        kind, x = kinds.get(j, "continuous"), values[:, j]
        if kind in LEVELS:
            written = said[name].get("levels", {})
            columns.append([str(written.get(level, level)) for level in np.array(LEVELS[kind])[x.astype(int)]])
        else:
            columns.append([f"{cell:.6g}" for cell in x / said[name].get("factor", 1.0)])
        if codes_of_gaps:
            said[name]["missing"] = codes_of_gaps
    cells = [list(row) for row in zip(*columns, strict=True)]
    for row, column in zip(*_gaps(has, values.shape, rng), strict=True):
        cells[row][column] = gap
    if {"row-of-999s", "unsaid-999s"} & has and k == _SITE_OF_999S:
        cells[int(rng.integers(len(cells)))] = ["999"] * len(variables)
    header = tuple(str(said[name].get("column", name)) for name in variables)
    return SiteTable(header, cells, {name: entry for name, entry in said.items() if entry})


def _applies(key: str, kind: str) -> bool:
    return key == "column" or (key == "levels") == (kind in LEVELS)


def _gaps(has: frozenset[Trouble], shape: tuple[int, ...], rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Rows and columns of the cells that are missing, completely at random."""
    n, V = shape
    lost = np.zeros((n, V), dtype=bool)
    if "missing" in has:
        rows = np.flatnonzero(rng.random(n) < MISSING_SHARE)
        lost[rows, rng.integers(V, size=rows.size)] = True
    if "missing-cells" in has:
        lost |= rng.random((n, V)) < MISSING_SHARE
    rows, columns = np.nonzero(lost)
    return rows.tolist(), columns.tolist()


def write_hospitals(hospitals: Hospitals, out: Path) -> list[Path]:
    """Write dictionary.toml, site-1.csv, ..., site-1.columns.toml where a site needs one, and truth.csv.

    Raises ResultError if the folder holds tables already, or cannot be written.

    Returns
    -------
    list of Path
        The tables.
    """
    new_folder(out)
    names = hospitals.variables
    edges = [[names[i], names[j]] for i, j in np.argwhere(hospitals.W != 0).tolist()]
    tables: list[Path] = []
    try:
        (out / "dictionary.toml").write_text(_toml(hospitals.dictionary), encoding="utf-8")
        write_table(out / "truth.csv", ["source", "target"], edges)
        for k, site in enumerate(hospitals.sites, start=1):
            tables.append(out / f"site-{k}.csv")
            write_table(tables[-1], site.header, site.rows)
            if site.columns:
                (out / f"site-{k}.columns.toml").write_text(_toml(site.columns), encoding="utf-8")
    except OSError as error:
        raise ResultError(f"folder {out} cannot be written: {error.strerror}") from None
    return tables


def _toml(content: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n".join(toml_entry(name, settings) for name, settings in content.items())
