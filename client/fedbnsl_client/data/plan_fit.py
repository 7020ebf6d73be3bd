"""How well a table fits a plan. Only people at the site may see this: never send it or write it to a shared log."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbnsl.console.wording import counted, first_few
from fedbnsl.errors import DataError, SchemaMismatchError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.limits import LEAST_SPREAD
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.preparation import Preparation
from fedbnsl.protocol.messages import FindingCode
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.checks import Oddity
from fedbnsl_client.data.costly_columns import advice
from fedbnsl_client.data.dataset import MIN_ROWS, Dataset
from fedbnsl_client.data.mapped_array import RowsElsewhere, some_rows, sum_over_rows
from fedbnsl_client.losses.between_rows import tells_of_pairs

# A column with the same value in more than this share of its records is almost constant; so is, under a plan, one that
# lies beyond its bound in so many of them, because every larger square counts as the bound.
_NEARLY_ALL = 0.95
_LOOKED_AT = 1000  # about so many records are sampled: their median is the repeated value of such a column


@dataclass(frozen=True)
class PlanFit:
    """What a table is like under a plan.

    Attributes
    ----------
    same_value
        The share of records (0 to 1) with the same value, of columns that are almost constant.
    beyond
        By column, the share of records (0 to 1) whose squared value exceeds the column's feature bound, which is in
        squared units; empty if the plan uses no bounds.
    beyond_any
        The share of records for which this holds of at least one column.
    """

    same_value: Mapping[str, float]
    beyond: Mapping[str, float]
    beyond_any: float

    def lines(self) -> list[str]:
        """The findings as text."""
        lines = [
            f"column {name!r}: the same value in {share:.1%} of the records" for name, share in self.same_value.items()
        ]
        if self.beyond:
            names = sorted((name for name, share in self.beyond.items() if share), key=lambda name: -self.beyond[name])
            by_column = first_few(f"{name!r} {self.beyond[name]:.2%}" for name in names)
            lines.append(
                f"{self.beyond_any:.2%} of the records lie beyond feature_bounds (a bound on x^2, not on x)"
                + (f": {by_column}" if names else "")
            )
        return lines


def refuse_other_columns(plan: Plan, columns: Sequence[str]) -> None:
    """Refuse a plan whose columns are not those of the run: they are priced, and bounded, as the plan has them.

    Raises SchemaMismatchError before anything is paid for.
    """
    if plan.column_names and set(plan.column_names) != set(columns):
        raise SchemaMismatchError(
            "the plan has other columns than the run that the coordinator offers: no record was used",
            remedy="Tell the coordinator's operator. Nothing was paid for.",
        )


def refuse_other_dictionary(plan: Plan, own: Dictionary) -> None:
    """Refuse a plan whose data dictionary says other things of the run's variables than the site's.

    Raises SchemaMismatchError with the first digits of both digests; also if only one side has a dictionary.
    """
    used = plan.variables or plan.dictionary.variables
    theirs = plan.dictionary.over(used) if plan.dictionary else plan.dictionary
    ours = own.over([name for name in used if name in own])
    if bool(own) == bool(theirs) and ours.digest() == theirs.digest():
        return
    if not theirs:
        raise SchemaMismatchError(
            f"the plan has no data dictionary, as a ready plan has none, and this site has one ({ours.digest()[:8]})",
            remedy="No record was used. Name the run's plan file, which holds its dictionary, or add --dictionary "
            "dictionary.toml. Where a run is without one, its operator serves it with --dictionary.",
        )
    differ = [name for name in ours.root if name in theirs.root and ours.root[name] != theirs.root[name]]
    here = (ours if theirs else own).digest()[:8] if own else "none"
    there = theirs.digest()[:8] if theirs else "none"
    raise SchemaMismatchError(
        f"this site's data dictionary is not that of the plan: digests over the run's variables {here} here, {there} "
        "there" + (f"; it says other things of {first_few(map(repr, differ))}" if differ else ""),
        remedy="No record was used. Get the consortium's dictionary.toml, put it in the place of this site's and "
        "register the table again (fedbnsl participant register FOLDER --supersedes); or ask the coordinator's "
        "operator for a plan with the same one.",
    )


def require_complete(table: Dataset, preparation: Preparation | None) -> None:
    """Refuse a table from which rows were left out that the plan wants to have, or too many of them.

    Raises DataError by column and count, with the way on.
    """
    first = table.gaps.first  # of a group under lags: what is missing there is not a gap of the table
    rows, whole = table.gaps.rows - first, table.gaps.of - first
    if rows <= 0:
        return
    found = f"of {table.gaps.of} rows, {table.gaps.said()}"
    if preparation is None or preparation.missing == "refuse":
        raise DataError(
            f"{found}. The plan wants none to be left out",
            remedy="Use a plan whose [preparation] has missing = 'em', such as standard, or fill them in.",
        )
    needed = max((1.0 - preparation.missing_most) * whole, MIN_ROWS)
    if whole - rows < needed:
        with_gaps = table.n_samples == table.gaps.of and not first and not isinstance(table.X, RowsElsewhere)
        raise DataError(
            f"{found}: more than the {preparation.missing_most:.0%} that the plan allows (preparation.missing_most), "
            f"or fewer than {MIN_ROWS} are left" + (f"; {advice(table.X, table.columns, needed)}" if with_gaps else ""),
            remedy="Use a plan with missing = 'em', such as standard, which uses rows with gaps, too; or leave out "
            "variables that are often empty: see docs/how-to/gaps-and-rare-levels.md.",
        )


def refuse_other_absent(plan: Plan, site: str, absent: Collection[str]) -> None:
    """Refuse a plan that says what sites lack, and of this site something else than its `columns.toml`.

    `absent`: variables that this site says it does not have. Raises SchemaMismatchError before a record is read.
    """
    used = plan.in_tables or {*absent, *plan.absent.of(site)}
    here, there = ([name for name in used if name in said] for said in (absent, plan.absent.of(site)))
    if plan.absent and here != there:
        said = [first_few(map(repr, names)) or "nothing" for names in (there, here)]
        raise SchemaMismatchError(
            f"the plan calls {said[0]} absent at {site} ([absent]), and this site's columns.toml {said[1]}",
            remedy="No record was used. Correct columns.toml (absent = true under the variable's name), or ask the "
            "coordinator's operator for a plan that says it as it is.",
        )


def require_present(table: Dataset, plan: Plan) -> None:
    """Refuse a table without some variables to a plan that cannot do without them at a site.

    A plan that uses complete rows alone would have none. A private one with a robust rule would give the site a vote on
    what it knows nothing of. Which are absent is public, as a site's operator says it. Raises DataError.
    """
    if table.absent and not (plan.completes or (plan.completes_privately and plan.consensus == "mean")):
        raise DataError(
            f"this site does not have {first_few(map(repr, table.absent))} (absent in its columns.toml), and the plan "
            "needs every variable at every site",
            remedy="Ask the coordinator's operator for a plan that uses rows with gaps, such as standard or private "
            "(with consensus = 'mean'), or for one whose `variables` leave it out at all sites.",
        )


def require_sizes(table: Dataset) -> None:
    """Refuse columns too small for moments about zero, which a plan without preparation sends in units of the table.

    The check of a table without a dictionary has refused such columns already. One with a dictionary may hold them: a
    plan that prepares columns divides by a spread of all sites. A column of zeros is a level that does not occur here.

    `table`: (n, d) without missing values. Raises DataError by column.
    """
    sizes = np.sqrt(sum_over_rows(table.X, lambda rows: np.square(rows).sum(axis=0)) / table.n_samples)
    small = np.flatnonzero((sizes > 0.0) & (sizes < LEAST_SPREAD)).tolist()
    if small:
        raise DataError(
            f"column(s) {first_few(repr(table.variables[k]) for k in small)}: the root of the mean square is below "
            f"{LEAST_SPREAD:g}, the least that a plan without [preparation] takes",
            remedy="Give them in another unit, or use a plan with [preparation], such as standard. Nothing of the "
            "table was sent.",
        )


def rows_for(table: Dataset, plan: Plan) -> Dataset:
    """The rows that a run of a plan uses, or a refusal as of `require_present`, `require_complete`, `require_sizes`.

    Without privacy those without a missing value, or with EM all that have a value. A private run keeps all of them, so
    that the number of its records does not depend on what they hold; without [preparation] an incomplete one is zeros.
    It refuses nothing, however many are incomplete: the coordinator would see that, and nobody has paid for it.
    """
    require_present(table, plan)
    if plan.privacy is not None:
        return table if plan.preparation is not None else table.with_zeros()
    if plan.completes:
        return table.with_values()
    require_complete(table, plan.preparation)
    used = table.complete_cases()
    if plan.preparation is None and plan.moments_rounds:
        require_sizes(used)
    return used


def require_rows_here(table: Dataset, plan: Plan) -> None:
    """Refuse a plan that looks at rows in every step, for a table whose rows Dask workers hold.

    Raises DataError with the way on.
    """
    if isinstance(table.X, RowsElsewhere) and plan.privacy and plan.rounds and plan.local_solver.startswith("dp-pgcd"):
        raise DataError(
            f"{plan.local_solver} looks at all rows of the table in every step; Dask workers give only sums over rows",
            remedy="Leave out --engine on a machine that holds the table, or use a private plan without such steps, "
            "such as private or private-moments (rounds = 0). Nothing was sent.",
        )


def oddities(table: Dataset, plan: Plan) -> tuple[Oddity, ...]:
    """What is odd about a table under a plan.

    Means matter only where nothing is taken off, and rows of a group only where they count as independent: also where
    they are of too few groups to tell how much they depend on each other.
    """
    without = set[FindingCode]()
    if plan.preparation is not None and plan.preparation.intercept != "none":
        without.add(FindingCode.MEANS_FAR_FROM_ZERO)
    if plan.sends_between_rows and tells_of_pairs(table.group_sizes):
        without.add(FindingCode.ROWS_OF_GROUPS)
    return tuple(one for one in table.odd if one.finding is None or one.finding.code not in without)


def site_lines(table: Dataset, plan: Plan, fit: PlanFit) -> list[str]:
    """What a person at the site should know about a table before a run of the plan uses it."""
    about = "about this table" + (", told here alone" if plan.privacy else "")
    return [f"{about}: {line}" for line in (*remarks(table, plan), *fit.lines())]


def remarks(table: Dataset, plan: Plan) -> list[str]:
    """What a person should look at before a run of the plan, of the table by itself."""
    used: Literal["left out", "as zeros", "completed"]
    used = "completed" if plan.uses_gaps else "as zeros" if plan.privacy else "left out"
    gaps = [table.gaps.said(used)] if table.gaps.rows else []
    gaps += few_complete(table, plan)
    if table.absent:
        gaps.insert(0, f"this table does not have {first_few(map(repr, table.absent))}")
    return [*gaps, *_persons(table, plan), *(one.text for one in oddities(table, plan))]


def _persons(table: Dataset, plan: Plan) -> list[str]:
    """Of how many persons a private run protects all rows together, and what counts of them."""
    if plan.privacy is None or table.rows is None:
        return []
    what = "what all rows tell on average" if plan.counts_rows_of_persons else "the means of the rows"
    return [
        f"a person is protected, not a row: {counted(len(table.rows), 'person')}, with "
        f"{counted(len(table.rows.X), 'row')} in all, of which none is left out; of a person {what} counts "
        "(privacy.persons_by)"
    ]


def few_complete(table: Dataset, plan: Plan) -> list[str]:
    """What to say of a table of which private steps learn next to nothing, as nearly all its rows are zeros to them.

    It refuses nothing: who sees a site stay away would learn how many of its rows have gaps.
    """
    complete = table.gaps.of - table.gaps.rows
    if plan.privacy is None or plan.uses_gaps or not table.gaps.rows or complete >= MIN_ROWS:
        return []
    return [f"only {complete} of {table.gaps.of} rows lack nothing: a run of this plan learns next to nothing of them"]


def refuse_beyond_bounds(fit: PlanFit, dataset_id: str) -> None:
    """Refuse a table of which a run of the plan would learn next to nothing, for the price of a whole run.

    By column, because of a wide table most records lie beyond one of many well-chosen bounds.

    Raises DataError if a column lies beyond its bound in nearly all records. It stays at the site.
    """
    lost = [name for name, share in fit.beyond.items() if share > _NEARLY_ALL]
    if lost:
        raise DataError(
            f"dataset {dataset_id!r}: nearly all records lie beyond feature_bounds, in column(s) "
            f"{first_few(map(repr, lost))}: a run would spend budget and learn next to nothing about them",
            remedy="Nothing was recorded, and nothing was sent. Is a column in another unit than the plan expects, or "
            "far from zero? Correct it by numbers that are public knowledge (docs/how-to/tables.md), or ask for a plan "
            "with wider bounds, never taken from this table. --beyond-bounds approves the plan as it is.",
        )


def fit_of(table: Dataset, plan: Plan) -> PlanFit:
    """Look at a table as a run of a plan would use it: at its rows without a missing value, or at all values.

    No record leaves this function.

    Raises DataError if the table lacks a variable of the plan.
    """
    table = table.reordered(plan.column_names or table.variables)
    if not plan.uses_gaps:
        table = table.complete_cases()
        if not table.n_samples:
            return PlanFit({}, {}, 0.0)
    d, n = len(table.variables), table.n_samples
    bounds: Matrix | None = None
    uses_bounds = plan.local_solver != "noisy-covariance" and plan.preparation is None
    if (
        uses_bounds
        and plan.privacy is not None
        and plan.privacy.smoothness == "estimated"
        and plan.privacy.feature_bounds
    ):
        bounds = np.broadcast_to(np.array(plan.privacy.feature_bounds), d)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column may have no value
        # An element, no mean of two.
        usual = np.nanpercentile(some_rows(table.X, _LOOKED_AT), 50, axis=0, method="lower")

    def counts(block: Matrix) -> Index:
        with np.errstate(over="ignore"):
            outside = np.zeros((0, d)) if bounds is None else block * block > bounds
        same = (block == usual).sum(axis=0)
        there = (~np.isnan(block)).sum(axis=0)
        return np.array([outside.any(axis=1).sum(), *same, *there, *outside.sum(axis=0)], dtype=np.int64)

    any_beyond, *by_column = sum_over_rows(table.X, counts).tolist()
    same, there, beyond = by_column[:d], by_column[d : 2 * d], by_column[2 * d :]
    same_value = {name: k / max(of, 1) for name, k, of in zip(table.variables, same, there, strict=True)}
    return PlanFit(
        {name: share for name, share in same_value.items() if share > _NEARLY_ALL},
        {} if bounds is None else {name: k / n for name, k in zip(table.variables, beyond, strict=True)},
        any_beyond / n,
    )
