"""How near private results on published tables come to those of `standard`: distance of the classes, and intervals.

The tables are FEDBNSL_DATA/real/*.csv, at most 8,000 rows of each, split over three sites and described by a draft of
their dictionary. Ranges, which public knowledge would give, are the values that occur, to one digit outwards.
"""

import itertools
import math
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbnsl.errors import DataError, ResultError
from fedbnsl.graphs.cpdag import class_distance
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.drafts.column_cells import as_number
from fedbnsl_client.data.drafts.dictionary_draft import draft
from fedbnsl_client.data.site_files import site_files
from fedbnsl_client.data.sources.csv_table import read_header, rows_of
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.store.result_file import learned_class
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import dictionary_of, read_tables, split

EPSILONS, _NOISE_SEEDS = (1.0, 5.0, 50.0, 500.0), range(2)
_MOST_ROWS, _SITES = 8000, 3


def private_tables() -> Iterator[Row]:
    """A row for each table."""
    folder = Path(os.environ.get("FEDBNSL_DATA", ""), "real")
    tables = sorted(folder.glob("*.csv"))
    if not tables:
        raise ResultError(f"published tables are needed, but {folder} has none", remedy="Set FEDBNSL_DATA.")
    for table in tables:
        try:
            yield _row(table)
        except DataError as error:
            yield {"figure": table.stem, "no run": str(error).partition("\n")[0]}


def _row(table: Path) -> Row:
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder, few = Path(scratch, "sites"), Path(scratch, table.name)
        with table.open(encoding="utf-8") as lines:
            few.write_text("".join(itertools.islice(lines, _MOST_ROWS + 1)), encoding="utf-8")
        split(few, _SITES, folder, seed=0)
        files = site_files(folder)
        draft(list(files.values())).write(folder / "dictionary.toml")
        described = _with_ranges(dictionary_of(folder), few)
        sites = read_tables(files, described.variables, dictionary=described, warn=False)

        def result_of(plan: Plan, out: str, noise_seed: int | None) -> dict[str, Any]:
            plan = plan.with_settings(n_participants=_SITES).with_dictionary(described, origin=str(table))
            return simulate(plan, sites, Path(scratch, out), noise_seed=noise_seed)

        standard = result_of(Plan.load("standard"), "standard", None)
        row: Row = {
            "figure": f"{table.stem}, {len(standard['variables'])} variables, noise of {len(_NOISE_SEEDS)} seeds",
            "edges of standard": len(standard["edges"]),
        }
        for epsilon in EPSILONS:
            plan = Plan.load("private", epsilon=epsilon)
            row |= compared([result_of(plan, f"{epsilon:g}-{k}", k) for k in _NOISE_SEEDS], standard, f"{epsilon:g}")
    return row


def compared(private: Sequence[Mapping[str, Any]], standard: Mapping[str, Any], epsilon: str) -> Row:
    """Cells of one budget: by seed pairs with another mark and edges that `standard` lacks, and intervals together.

    An interval counts if `standard` has a coefficient of the same two columns in the same direction.
    """
    estimates = {pair: one["weight"] for pair, one in _coefficients(standard)}
    held = [
        one["interval"][0] <= estimates[pair] <= one["interval"][1]
        for result in private
        for pair, one in _coefficients(result)
        if one.get("interval") and estimates.get(pair) is not None
    ]
    known = {frozenset((edge["source"], edge["target"])) for edge in standard["edges"]}
    own = [[frozenset((edge["source"], edge["target"])) for edge in result["edges"]] for result in private]
    reference = learned_class(standard)
    return {
        f"class distance, epsilon {epsilon}": _listed(class_distance(learned_class(one), reference) for one in private),
        f"edges / of them not in standard, epsilon {epsilon}": " ".join(
            f"{len(pairs)}/{sum(pair not in known for pair in pairs)}" for pairs in own
        ),
        f"intervals that hold the estimate of standard, epsilon {epsilon}": f"{sum(held)} of {len(held)}",
    }


def _listed(numbers: Iterator[int]) -> str:
    return " ".join(map(str, numbers))


def _coefficients(result: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    for edge in result["edges"]:
        for one in edge.get("coefficients") or [edge]:
            yield (one["source"], one["target"]), one


def _with_ranges(drafted: Dictionary, table: Path) -> Dictionary:
    """The draft with a range for each number."""
    header = read_header(table)
    rows, entries = list(rows_of(table, header)), dict(drafted.items())
    for name in drafted.without_range():
        cells = (as_number(row[header.index(name)].strip()) for row in rows)
        values = [value for value in cells if value is not None]
        entries[name] = entries[name].model_copy(update={"range": outward_range(values)})
    return Dictionary({name: entries[name] for name in drafted.variables})


def outward_range(values: Iterable[float]) -> tuple[float, float]:
    """A range that has all of these values, and ends of one digit: what public knowledge might say."""
    known = list(values)
    return _outwards(min(known), math.floor), _outwards(max(known), math.ceil)


def _outwards(value: float, rounded: Any) -> float:
    """The nearest number of one digit on the outer side."""
    unit = 10.0 ** math.floor(math.log10(abs(value))) if value else 1.0
    return float(rounded(value / unit) * unit)
