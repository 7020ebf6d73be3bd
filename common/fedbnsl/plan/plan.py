"""Plan: every public setting of a run, validated once, frozen, with a TOML form and a digest.

A plan is what coordinator and participants agree on before any record is read. It says nothing about the data
except, optionally, the names of the variables.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from fedbnsl.console.shown import steers_terminal
from fedbnsl.console.wording import first_few
from fedbnsl.errors import PlanError
from fedbnsl.plan.absent import Absent
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Column, Dictionary, Entry
from fedbnsl.plan.knowledge import EdgeMask, Knowledge, VariableName
from fedbnsl.plan.limits import (
    LARGEST_SQUARE,
    MOST_CELLS,
    MOST_CELLS_A_ROUND,
    MOST_CURVATURE_NUMBERS,
    MOST_IN_TABLE,
    MOST_REGRESSION_NUMBERS,
)
from fedbnsl.plan.plan_file import read_settings, read_toml
from fedbnsl.plan.preparation import Preparation
from fedbnsl.plan.privacy_settings import Positive, Privacy, Real, Unit
from fedbnsl.plan.refusals import explain
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name
from fedbnsl.protocol.sparse import Mask, Matrix

# Strict: `rounds = true` or `rounds = "1"` is a slip, not a number.
Count = Annotated[int, Field(strict=True)]
Sites = Annotated[Count, Unit("sites")]
Rounds = Annotated[Count, Unit("rounds")]
Seconds = Annotated[Positive, Unit("s")]
NonNegative = Annotated[Real, Field(ge=0)]

Solver = Literal["pgcd", "closed-form", "frank-wolfe", "dp-pgcd", "dp-pgcd-laplace", "noisy-covariance"]
Consensus = Literal["mean", "median", "trimmed-mean"]
GraphClass = Literal["cpdag", "dag-equal-variance"]
FinalSearch = Literal["none", "steps"]
PRIVATE_SOLVERS = ("dp-pgcd", "dp-pgcd-laplace", "noisy-covariance")

# Every private step costs budget. More steps than this mean that somebody left the non-private default unchanged.
_BYTES_A_CELL = 8  # a step to the next cell and a count, mostly one or two bytes each
_MOST_PRIVATE_STEPS = 10_000

# Of two sites that differ, neither is in a majority.
FEWEST_FOR_ROBUST = 3

MOST_LEVELS = 70
"""Of a variable whose records are counted: tables of two variables then have fewer than 5,000 cells."""

FEWEST_HONEST = 2
"""Sites that share the noise of secure aggregation, at least: of one alone, the sum would be its own release."""

LARGEST_PENALTY = 1e12
"""At which the coefficient of h(W), or the weight of its square, stops growing."""


class Plan(BaseModel):
    """The settings of a run. Names follow docs/explanation/algorithm.md; every field states unit and range.

    Examples
    --------
    >>> from fedbnsl import Plan
    >>> plan = Plan.load("private", epsilon=2.0).with_settings(n_participants=5)
    >>> plan.privacy.epsilon, plan.n_participants
    (2.0, 5)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="default", description="shown to people; has no effect", max_length=200)
    variables: tuple[VariableName, ...] = Field(
        default=(), description="names of the variables in order; empty: whoever serves the plan has to name them"
    )

    # The federation
    n_participants: Sites = Field(default=3, ge=1, le=10_000, description="sites that must join before round 1")
    quorum: Sites = Field(default=0, ge=0, description="sites that must contribute to every round; 0: all of them")
    sites: tuple[str, ...] = Field(
        default=(), description="names of the sites that may take part, n_participants of them; empty: whoever joins"
    )
    max_rows: Annotated[Count, Unit("rows")] = Field(
        default=10_000_000,
        ge=1,
        le=10**12,
        description="most rows that a site may say it has; a site that says more is refused when it joins",
    )
    consensus: Consensus = Field(
        default="mean",
        description="how the sites' numbers become one, entry by entry: mean; median or trimmed-mean (a quarter of the "
        "weight is left out at each end, and at least one site), by which no single site decides. These weight the "
        "sites by rows, none by more than the median of the row counts",
    )

    # Algorithm 1
    rounds: Rounds = Field(
        default=80, ge=0, le=100_000, description="ADMM rounds (T); 0 only with [privacy] and moments_rounds"
    )
    consensus_penalty: Positive = Field(default=3.0, description="weight of the gap between B_p and W (rho_2)")
    acyclicity_schedule: Literal["continuation", "augmented"] = Field(
        default="continuation",
        description="how the acyclicity term grows: continuation (one growing coefficient) or augmented (Lagrangian)",
    )
    acyclicity_penalty: Positive = Field(
        default=1.0, le=LARGEST_PENALTY, description="augmented: weight of h(W)^2 / 2 in round 1 (rho_1)"
    )
    acyclicity_growth: Real = Field(default=1.2, ge=1, le=10, description="augmented: factor of that weight a round")
    global_iterations: Annotated[Count, Unit("iterations")] = Field(
        default=20, ge=1, le=100_000, description="L-BFGS iterations of a global step"
    )
    global_gain: Real = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="a global step ends when an iteration gains at most this share of what all its iterations gained",
    )

    # The local solver
    local_solver: Solver = Field(
        default="pgcd",
        description="pgcd: proximal greedy coordinate descent; closed-form: exact ridge solution, dense, reveals X'X; "
        "frank-wolfe: the problem of pgcd, slower; "
        "with [privacy]: dp-pgcd, dp-pgcd-laplace (Mangold et al.), noisy-covariance (closed form of a noisy X'X)",
    )
    l1_weight: NonNegative = Field(
        default=0.1, description="L1 weight (lambda) on every B_p; closed forms: on W, once for all sites"
    )
    step_size: Real = Field(default=1.0, gt=0, le=1, description="share of a full coordinate step (gamma)")
    local_steps: Annotated[Count, Unit("steps")] = Field(
        default=100_000, ge=1, le=10**9, description="most steps of a local solve, a round (K)"
    )
    local_tol: NonNegative = Field(
        default=1e-4, description="a solve ends when the best score (frank-wolfe: the duality gap) falls below this"
    )

    # After the last round
    threshold: NonNegative = Field(default=0.3, description="an edge is kept if its absolute weight exceeds this (tau)")
    refit_rounds: Rounds = Field(default=1, ge=0, le=10, description="rounds of least squares on the learned support")
    refit_threshold: NonNegative = Field(default=0.05, description="absolute weight above which an edge is refitted")
    moments_rounds: Rounds = Field(
        default=0,
        ge=0,
        le=10,
        description="1: instead of a refit the sites send second moments of neighbours, and the coordinator searches "
        "the graph; 2: then once more, of all pairs of up to 300 columns, or of those within two steps in that graph; "
        "with [privacy]: number of rounds of noisy moments of the last DAG's residuals",
    )
    neighbour_threshold: NonNegative = Field(
        default=0.01,
        description="absolute weight in W, after the first or the last round, above which two variables are neighbours",
    )

    counts_rounds: Rounds = Field(
        default=0,
        ge=0,
        le=20,
        description="cpdag, after moments_rounds, where every variable is binary or nominal with at most 70 levels: "
        "rounds in which the sites count the records in each combination of levels of a few variables, by which the "
        "coordinator improves the graph; other tables have no such rounds; 0: none; always 0 with [privacy]",
    )
    final_search: FinalSearch = Field(
        default="none",
        description="dp-pgcd: steps: the sites send every released step with its weights, and after the last round the "
        "coordinator searches the DAG of equal noise variances that explains all of them best; it costs no budget "
        "(where a variable has several columns, the graph is that of the last W)",
    )
    regressions_rounds: Rounds = Field(
        default=0,
        ge=0,
        le=50,
        description="most rounds, after the graph is found, for odds ratios and rate ratios: regressions of binary, "
        "nominal, ordinal and count variables on their parents, with an intercept for each site; 0: none",
    )

    look_for_curves: bool = Field(
        default=False,
        description="whether one more round, after the graph is found, tests that straight lines describe how numbers "
        "depend on each other; the result names pairs where they do not",
    )

    # What the graph says
    graph_class: GraphClass = Field(
        default="dag-equal-variance",
        description="dag-equal-variance: directions that the data leave open rest on equal noise variances in the "
        "tables' units; cpdag (with moments_rounds): edges are directed only where every DAG that fits the data as "
        "well agrees, or knowledge tells; the others stay undirected",
    )
    search_seed: Annotated[Count, Field(ge=0, le=2**63 - 1)] = Field(
        default=0, description="cpdag: of the random moves of the search and the draws of the bootstrap"
    )
    bootstrap: Annotated[Count, Unit("draws")] = Field(
        default=100,
        ge=0,
        le=10_000,
        description="cpdag: draws of the parametric bootstrap, which tells in what share of graphs each edge is found; "
        "costs time at the coordinator, no message and no privacy; 0: none",
    )

    # Messages
    value_type: Literal["float64", "float32"] = Field(default="float64", description="precision of sent weights")
    send_tolerance: NonNegative = Field(
        default=0.0,
        description="an entry of B_p or W is sent when it has moved by more than this since it was last sent, and both "
        "sides work with what was last sent; 0: every non-zero entry, every round",
    )
    send_step: NonNegative = Field(
        default=0.0,
        description="entries of B_p and W are rounded to whole multiples of this power of two before they are sent, "
        "which takes about 2 bytes an entry instead of 5 or 9; both sides work with what was sent; 0: not rounded",
    )

    # Times, in seconds
    join_deadline_s: Seconds = Field(default=600.0, description="s that the coordinator waits for all sites to join")
    round_deadline_s: Seconds = Field(default=600.0, description="s after which a round goes on with a quorum")
    site_grace_s: Seconds = Field(
        default=30.0, description="s in a round after which the coordinator names the sites that it waits for"
    )
    run_deadline_s: Seconds = Field(
        default=86_400.0,
        description="s after which a round that is still without quorum stops the run",
    )
    rpc_timeout_s: Seconds = Field(
        default=30.0, description="s that one call may take, in addition to the wait of a long poll"
    )

    # What is done to the tables first
    preparation: Preparation | None = Field(
        default=None,
        description="how sites make comparable columns; absent: raw columns as in the paper, and one vote a site",
    )

    dictionary: Dictionary = Field(
        default=Dictionary(),
        description="what each variable is: kind, unit, range, transform, levels; which rows belong together; empty: "
        "every column is a number",
    )

    absent: Absent = Field(
        default=Absent(), description="which variables some sites do not have; empty: each site's columns.toml says it"
    )

    # What is known before
    knowledge: Knowledge = Field(default=Knowledge(), description="required and forbidden edges, tiers of variables")

    # What may be learned about one record
    privacy: Privacy | None = Field(default=None, description="what a private run may spend; absent: no privacy")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        broken = next(_broken_rules(self), None)
        if broken is not None:
            setting, rule = broken
            value: Any = self.model_dump(mode="json")
            for key in setting.split("."):
                value = value[key]
            raise ValueError(f"{setting} = {value!r}: must be {rule}")
        return self

    @model_validator(mode="after")
    def _one_record_a_person(self) -> Self:
        rows = self.dictionary.rows
        if self.privacy is not None and not rows.one_record_a_group:
            raise ValueError(
                f"dictionary: {rows.in_words()}, so that one person has several records, and [privacy] protects a "
                "record; use within = 'between' without lags, which makes each group one record"
            )
        if self.privacy is not None and rows.time in self.dictionary:
            raise ValueError(
                f"dictionary: {rows.time}.trend makes a variable of a time, which has no public range, and [privacy] "
                "takes its bounds from ranges; leave trend out"
            )
        return self

    @property
    def secure_aggregation(self) -> bool:
        """Whether the coordinator sees sums over all sites only."""
        return self.privacy is not None and self.privacy.secure_aggregation

    @property
    def n_honest(self) -> int:
        """Sites whose noise the guarantee relies on: all but those that may collude; 1 without secure aggregation."""
        if self.privacy is None or not self.privacy.secure_aggregation:
            return 1
        return self.n_participants - (self.privacy.colluding or max(1, self.n_participants // 4))

    @property
    def retries(self) -> int:
        """Sites that secure aggregation may lose, see `Privacy.retries`."""
        return 0 if self.privacy is None else self.privacy.retries

    def preparation_lines(self) -> list[str]:
        """What is done to the tables first, in words; empty if nothing is."""
        lines: list[str] = []
        if self.preparation is not None:
            told = self.preparation.in_words(private=self.privacy is not None, moments=self.completes_privately)
            lines.append("prepared: " + "; ".join(told))
        if self.dictionary:
            kinds = [entry.kind for entry in self.dictionary.root.values() if entry.is_variable]
            counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
            lines.append(f"data dictionary {self.dictionary.digest()[:8]}: {counted}")
            lines += [self.dictionary.rows.in_words()] if self.dictionary.rows else []
        return [*lines, *self.absent.lines(self.n_participants)]

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of a run, in order; empty: whoever serves the plan has to name the variables."""
        if not self.dictionary:
            return self.variables
        return tuple(column.name for column in self.dictionary.columns(self.variables))

    @property
    def in_tables(self) -> tuple[str, ...]:
        """What the variables of a run are called in the sites' tables; empty: not known yet."""
        if not self.dictionary:
            return self.variables
        return self.dictionary.present(self.variables or self.dictionary.variables)

    def columns(self, names: Sequence[str]) -> Columns:
        """A run's columns in the order of its matrices, and the variables that they belong to."""
        dictionary = self.dictionary
        owners = {column.name: column.variable for column in dictionary.columns()}
        return Columns.of(names, owners, dictionary.slice_of if dictionary.has_slices else None)

    def edge_mask(self, names: Sequence[str]) -> EdgeMask:
        """What is known of the edges between a run's columns; raises PlanError for knowledge about other variables."""
        return EdgeMask(self.knowledge, self.columns(names))

    def require_ranges(self, n_columns: int) -> tuple[Column, ...]:
        """The columns of a private run that prepares them, each with public bounds; PlanError if one has none."""
        if not self.dictionary:
            raise PlanError(
                f"plan {self.name!r} prepares columns under privacy, which takes a data dictionary with a range for "
                "each variable; it has none",
                remedy="Give one by --dictionary FILE (in a folder of tables: dictionary.toml; `fedbnsl data "
                "dictionary` drafts one). Ranges must be public knowledge, never taken from a private table.",
            )
        open_ended = self.dictionary.without_range(self.variables)
        if open_ended:
            raise PlanError(
                f"the data dictionary has no range for {first_few(map(repr, open_ended))}, and a private run takes its "
                "bounds from nowhere else",
                remedy="Add range = [low, high] to each, from public knowledge, never from a private table.",
            )
        columns = self.dictionary.columns(self.variables)
        if len(columns) != n_columns:
            raise PlanError(
                f"the data dictionary has {len(columns)} columns for this run, and the table {n_columns}",
                remedy="Name the used variables in the plan (`variables`), or leave the others out of the dictionary.",
            )
        return columns

    def bounds(self, names: Sequence[str]) -> tuple[Matrix, Matrix]:
        """(d,) public lower and (d,) upper bounds of the columns of these names, in order; see `require_ranges`."""
        by_name = {column.name: column for column in self.require_ranges(len(names))}
        columns = [by_name[name] for name in names]
        return np.array([column.low for column in columns]), np.array([column.high for column in columns])

    @property
    def needed(self) -> int:
        """Sites that must contribute to every round."""
        return self.quorum or self.n_participants

    @property
    def weighs_rows(self) -> bool:
        """Whether a site's weight in means over sites is its rows; otherwise each site has the same."""
        return self.preparation is not None and self.preparation.weighting == "rows"

    @property
    def sends_between_rows(self) -> bool:
        """Whether second moments come with those between two rows of a group, so that rows count as dependent."""
        return self.privacy is None and self.moments_rounds > 0 and self.dictionary.rows.keeps_rows

    @property
    def completes(self) -> bool:
        """Whether EM completes the sums of rows with gaps."""
        return self.privacy is None and self.preparation is not None and self.preparation.missing == "em"

    @property
    def leaves_out_outlying(self) -> bool:
        """Whether values that lie far apart from all others count as missing."""
        return self.completes and self.preparation is not None and self.preparation.outlying == "missing"

    def numbers(self, columns: Columns) -> Mask:
        """(d,) which columns of a run hold numbers, not levels."""
        of_variable = [
            name not in self.dictionary or not self.dictionary[name].has_levels for name in columns.variables
        ]
        return np.array(of_variable, dtype=bool)[columns.variable_of]

    @property
    def completes_privately(self) -> bool:
        """Whether what was released completes records with gaps."""
        return self.privacy is not None and self.preparation is not None and self.moments_rounds > 0

    @property
    def uses_gaps(self) -> bool:
        """Whether a row with a missing value counts for the values that it has."""
        return self.completes or self.completes_privately

    @property
    def uncountable(self) -> tuple[str, ...]:
        """The variables of a run that are no categories with few enough levels to be counted."""
        dictionary = self.dictionary
        entries = {name: dictionary[name] for name in dictionary.of_run(self.variables) if name in dictionary}
        return tuple(name for name, one in entries.items() if not one.is_indicator or len(one.levels) > MOST_LEVELS)

    @property
    def counted(self) -> bool:
        """Whether counts decide about the graph: only where all variables are categories, and rows independent.

        Beside numbers they are not used: what counts know better of two categories would stay in the score where a
        number explains their dependence, and give false edges.
        """
        searched = self.moments_rounds > 0 and self.graph_class == "cpdag" and self.consensus == "mean"
        described = bool(self.dictionary) and not self.dictionary.rows
        return self.counts_rounds > 0 and searched and described and not self.uncountable

    @property
    def not_counted(self) -> bool:
        """Whether several variables are categories, and are not counted since others are none."""
        described = self.counts_rounds > 0 and bool(self.dictionary) and bool(self.uncountable)
        names = self.dictionary.of_run(self.variables) if described else ()
        return sum(name in self.dictionary and self.dictionary[name].is_indicator for name in names) > 1

    @property
    def looks_for_curves(self) -> bool:
        """Whether a round tests straight lines."""
        searches = self.privacy is None and self.preparation is not None and self.moments_rounds > 0
        return self.look_for_curves and searches and not self.no_curves_because

    @property
    def no_curves_because(self) -> Literal["", "levels", "consensus", "groups"]:
        """Why a run that is to test straight lines does not; empty: it does.

        Sums over all sites have no robust rule, and chance is not known where rows of a group count one by one.
        """
        variables = [entry for entry in self.dictionary.root.values() if entry.is_variable]
        if self.dictionary and sum(not entry.has_levels for entry in variables) < 2:
            return "levels"
        if self.consensus != "mean":
            return "consensus"
        return "groups" if self.dictionary.rows.keeps_rows else ""

    @property
    def sends_changes(self) -> bool:
        """Whether B_p and W are sent as the entries that have changed since they were last sent."""
        return self.send_tolerance > 0.0

    @property
    def has_ratios(self) -> bool:
        """Whether regressions of children with levels and of counts are asked for; only the dictionary tells these."""
        return self.regressions_rounds > 0 and bool(self.dictionary) and not self.no_ratios_because

    @property
    def no_ratios_because(self) -> Literal["", "consensus", "groups"]:
        """Why a run tells no ratios although it has rounds for them; empty: it does.

        Sums over all sites have no robust rule; rows of a group are not independent, and their means are no levels.
        """
        if self.consensus != "mean":
            return "consensus"
        return "groups" if self.dictionary.rows.group and not self.dictionary.rows.lags else ""

    @property
    def further_bytes(self) -> int:
        """Bytes that an answer may have beside those that follow from the number of variables."""
        numbers = MOST_REGRESSION_NUMBERS * self.has_ratios + MOST_CURVATURE_NUMBERS * self.looks_for_curves
        return 32 * self.steps_sent + 9 * numbers + _BYTES_A_CELL * MOST_CELLS_A_ROUND * self.counted

    @property
    def steps_sent(self) -> int:
        """How many steps a site sends with an answer."""
        return self.local_steps if self.sends_steps else 0

    @property
    def sends_steps(self) -> bool:
        """Whether a site's answer in an ADMM round holds its private steps."""
        return self.final_search == "steps"

    @property
    def dense_messages(self) -> bool:
        """Whether B_p, beta_p and W are sent with all d^2 entries, as the solvers without sparsity need."""
        return self.local_solver in ("closed-form", "noisy-covariance")

    @classmethod
    def parse(cls, settings: Mapping[str, Any], *, origin: str = "plan") -> Self:
        """A plan from plain values; a PlanError names each wrong setting, its value and the rule that it breaks."""
        # The plan.toml of a run folder has every setting: one that is gone is no error where it says what now holds.
        settings = {name: value for name, value in settings.items() if name not in _GONE or value != _GONE[name][0]}
        given = settings.get("privacy")
        if isinstance(given, Mapping):  # a setting under both names keeps the old one, which is refused
            names = {old: new for old, new in _RENAMED.items() if new not in given}
            table = cast(Mapping[str, Any], given)
            settings["privacy"] = {names.get(name, name): value for name, value in table.items()}
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            problems = explain(error, cls, _TABLES, _GONE)
            raise PlanError("\n".join([f"{origin} cannot be used:", *problems])) from None

    @classmethod
    def from_toml(cls, text: str, *, origin: str = "plan") -> Self:
        """A plan from TOML text; see `parse` for the errors."""
        return cls.parse(read_toml(text, origin), origin=origin)

    @classmethod
    def load(
        cls,
        plan: str | Path,
        overrides: Iterable[str] = (),
        *,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Self:
        """A ready plan by its name or a TOML file by its path, with some settings replaced.

        Parameters
        ----------
        overrides
            `key=value`, the value in TOML; `knowledge.required=[...]` reaches into a table.
        epsilon, delta
            Of `[privacy]`, in place of the plan's.

        Raises
        ------
        PlanError
            If the plan cannot be found or read, or as `parse`.
        """
        given = read_settings(plan, overrides, epsilon=epsilon, delta=delta)
        return cls.parse(given.settings, origin=given.origin)

    def with_settings(self, **settings: object) -> Self:
        """A copy with some settings replaced, validated like any other plan."""
        return self.parse({**self.model_dump(), **settings}, origin=f"plan {self.name!r}")

    def with_dictionary(self, dictionary: Dictionary, *, origin: str, given: Path | None = None) -> Self:
        """A copy with the data dictionary of `origin`.

        Raises
        ------
        PlanError
            If the plan has another one, by the option --dictionary `given` or as part of it, or names variables that
            this one lacks.
        """
        if self.dictionary and self.dictionary.digest() != dictionary.digest():
            mine, remedy = f"plan {self.name!r}", "Take the one that all sites have, in one of the two places."
            if given is not None:
                mine = f"--dictionary {given}"
                remedy = f"Leave --dictionary out to use {origin}, or move that file away to use {given}."
            raise PlanError(
                f"the data dictionary of {mine} ({self.dictionary.digest()[:8]}) is not that of {origin} "
                f"({dictionary.digest()[:8]}): neither is used",
                remedy=remedy,
            )
        return self.with_settings(dictionary=dictionary.model_dump())

    def sections(self) -> Iterator[tuple[tuple[str, ...], BaseModel, dict[str, FieldInfo]]]:
        """The tables of a plan's file: path, model, and settings that have a value; first those in no table, under ().

        Each variable of the data dictionary is a table, such as ("dictionary", "age").
        """
        tables: dict[tuple[str, ...], BaseModel] = {(): self}
        for key in type(self).model_fields:
            value = getattr(self, key)
            if isinstance(value, Dictionary):
                tables |= {(key, name): entry for name, entry in value.root.items()}
            elif isinstance(value, BaseModel):
                tables[key,] = value
        for path, table in tables.items():
            if isinstance(table, Absent):
                if table:
                    yield path, table, table.fields
                continue
            fields = type(table).model_fields.items()
            yield path, table, {k: info for k, info in fields if not isinstance(getattr(table, k), BaseModel | None)}

    def to_toml(self) -> str:
        """Every setting with its meaning as a comment; `from_toml` reads it back to an equal plan."""
        lines: list[str] = []
        for path, model, fields in self.sections():
            header: dict[str, Any] = {}
            for key in reversed(path):
                header = {key: header}
            lines.append(tomli_w.dumps(header).strip())
            values = model.model_dump(mode="json")
            for key, info in fields.items():
                if isinstance(model, Entry) and getattr(model, key) == info.get_default():
                    continue  # explained under [dictionary] once
                setting = tomli_w.dumps({key: values[key]})
                if not isinstance(model, Entry):
                    default = tomli_w.dumps({"default": info.get_default()}) if not info.is_required() else ""
                    explained = f" [{default.strip().replace(' =', ':', 1)}]" if default else ""
                    lines.append(f"# {info.description}{explained}\n{setting}")
                else:
                    lines.append(setting.rstrip())
        return "\n".join(lines).lstrip()

    def digest(self) -> bytes:
        """SHA-256 of the canonical form: the same settings give the same digest, whatever the file looked like."""
        content = {**self.model_dump(mode="json"), "dictionary": self.dictionary.content()}
        if self.sends_between_rows:  # within = "rows" sent nothing of that before
            content["between_rows"] = True
        if not self.look_for_curves:  # as below
            del content["look_for_curves"]
        if not self.absent:  # approvals and checkpoints of earlier versions hold digests without it
            del content["absent"]
        if content["preparation"] is not None and content["preparation"]["outlying"] == "keep":
            del content["preparation"]["outlying"]
        for later in ("counts_rounds", "regressions_rounds"):  # likewise
            if not content[later]:
                del content[later]
        if content["privacy"] is not None:  # by the first names, under which older checkpoints and approvals have it
            first = {new: old for old, new in _RENAMED.items()}
            content["privacy"] = {first.get(name, name): value for name, value in content["privacy"].items()}
        canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).digest()

    def approvable_digests(self) -> tuple[bytes, ...]:
        """Digests under which a site may have approved it: its own, and those without names of variables or sites.

        Whoever serves a plan may add these names. They change neither its privacy cost nor what it releases: a site
        takes part with its own variables or not at all.
        """
        variables, sites = {self.variables, ()}, {self.sites, ()}
        named = [self.model_copy(update={"variables": v, "sites": s}) for v in variables for s in sites]
        return tuple(plan.digest() for plan in named)


_ESTIMATED = "with [privacy], except for dp-pgcd with smoothness = 'estimated'"

_CHOICES: dict[str, Callable[[Plan], bool]] = {
    "with [privacy]": lambda plan: plan.privacy is not None,
    _ESTIMATED: lambda plan: (
        plan.privacy is not None and (plan.local_solver != "dp-pgcd" or plan.privacy.smoothness != "estimated")
    ),
    "with privacy.secure_aggregation": lambda plan: plan.secure_aggregation,
    "with closed-form or noisy-covariance": lambda plan: plan.dense_messages,
    "with moments_rounds": lambda plan: plan.moments_rounds > 0,
    "without moments_rounds": lambda plan: plan.moments_rounds == 0,
    "with final_search = 'steps'": lambda plan: plan.sends_steps,
}

# The one value that a choice leaves to another setting, and why. Not types by solver, search and privacy: a file could
# then not hold a setting that its choices do not use, and --set of a choice alone would fail on what is left of others.
_FIXED: tuple[tuple[str, str, object, str], ...] = (
    ("with [privacy]", "refit_rounds", 0, "a refit is one more release"),
    ("with [privacy]", "counts_rounds", 0, "exact counts would be released"),
    ("with [privacy]", "send_step", 0, "what was released is sent as it is"),
    ("with [privacy]", "regressions_rounds", 0, "their sums are exact, and each would be one more release"),
    ("with [privacy]", "look_for_curves", False, "its sums are exact, and would be one more release"),
    (_ESTIMATED, "moments_rounds", 0, "their first scales are estimated second moments"),
    (_ESTIMATED, "preparation", None, "its statistics are paid for as estimated second moments"),
    ("with privacy.secure_aggregation", "rounds", 0, "an ADMM round needs the weights of each site"),
    ("with privacy.secure_aggregation", "quorum", 0, "masks cancel over all"),
    ("with privacy.secure_aggregation", "consensus", "mean", "the coordinator knows sums only"),
    ("with closed-form or noisy-covariance", "send_tolerance", 0, "their messages are dense"),
    ("with closed-form or noisy-covariance", "send_step", 0, "their messages are dense"),
    ("with moments_rounds", "refit_rounds", 0, "the search refits"),
    ("without moments_rounds", "graph_class", "dag-equal-variance", "only their search can tell a class"),
    ("with final_search = 'steps'", "local_solver", "dp-pgcd", "the search explains its steps"),
    ("with final_search = 'steps'", "moments_rounds", 0, "they have another search"),
    ("with final_search = 'steps'", "consensus", "mean", "the search trusts all sites alike"),
    ("with final_search = 'steps'", "send_tolerance", 0, "the search needs every step"),
    ("with final_search = 'steps'", "preparation", None, "the search compares variances in the tables' own units"),
)


def _broken_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    """Settings that do not go together with others, each with the rule that it breaks."""
    solver, privacy = plan.local_solver, plan.privacy
    if any(map(steers_terminal, plan.name)):
        yield "name", "without control or bidirectional characters"
    for setting, names in (("variables", plan.variables), ("sites", plan.sites)):
        if len(set(names)) < len(names):
            yield setting, "names without repetition"
    if len(plan.variables) == 1:
        yield "variables", "at least two names (or none)"
    unknown = [repr(name) for name in plan.variables if name not in plan.dictionary]
    if plan.dictionary and unknown:
        yield "variables", f"names that the data dictionary has; it lacks {first_few(unknown)}"
    if fault := next(plan.absent.faults(plan.n_participants, plan.sites, plan.in_tables), None):
        yield "absent", fault
    if plan.absent and not plan.uses_gaps:
        yield "absent", "empty unless rows with gaps are completed: [preparation] missing = 'em', or private moments"
    if plan.privacy and (pairs := plan.absent.never_together(plan.n_participants)):
        yield "absent", f"of no two variables that no site has together, such as {' and '.join(map(repr, pairs[0]))}"
    if plan.privacy and plan.absent and plan.consensus != "mean":
        yield "consensus", "mean with absent variables and privacy: a site that lacks one would have a vote on it"
    of_one = [name for name, sites in plan.absent.by_variable().items() if len(sites) > plan.n_participants - 2]
    if plan.secure_aggregation and of_one:
        yield "absent", f"so that two sites or more have each variable: a sum would tell {of_one[0]!r} of one site"
    if not all(map(is_site_name, plan.sites)):
        yield "sites", SITE_NAME_RULE
    if plan.sites and len(plan.sites) != plan.n_participants:
        yield "sites", "as many names as n_participants"
    if plan.quorum > plan.n_participants:
        yield "quorum", "at most n_participants"
    if plan.consensus != "mean" and plan.needed < FEWEST_FOR_ROBUST:
        fewer = f"fewer than {FEWEST_FOR_ROBUST} sites in a round (n_participants, quorum)"
        yield "consensus", f"mean with {fewer}: of two, nothing tells which one is wrong"
    if large := next(_uncountable_families(plan), ""):
        limits = f"{MOST_CELLS} cells or {MOST_IN_TABLE} variables"
        yield "counts_rounds", f"0, or fewer parents required: the table of {large} has more than {limits}"
    if plan.refit_threshold > plan.threshold and not plan.moments_rounds:
        yield "refit_threshold", "at most threshold"
    if plan.send_step and not (math.frexp(plan.send_step)[0] == 0.5 and 2.0**-32 <= plan.send_step <= 1.0):
        yield "send_step", "0, or a power of two from 2^-32 to 1, such as 0.001953125"
    if solver == "frank-wolfe" and not plan.l1_weight:
        yield "l1_weight", "above 0 with frank-wolfe, which needs the L1 term to bound its search"
    if plan.rounds == 0 and not (privacy and plan.moments_rounds):
        yield "rounds", "at least 1 without private moments_rounds"
    if privacy is not None:
        yield from _broken_privately(plan, privacy)
    elif solver in PRIVATE_SOLVERS:
        yield "local_solver", "pgcd, closed-form or frank-wolfe, without [privacy] (epsilon)"
    elif plan.moments_rounds > 2:
        yield "moments_rounds", "at most 2 without [privacy]"
    elif plan.preparation and plan.preparation.scale != "none" and not plan.refit_rounds + plan.moments_rounds:
        last = "refit_rounds or moments_rounds, which give weights in the tables' own units"
        yield "preparation", f"of scale 'none' without {last}"
    for choice, setting, value, why in _FIXED:
        if getattr(plan, setting) != value and _CHOICES[choice](plan):
            yield setting, f"{'absent' if value is None else value} {choice}: {why}"


def _uncountable_families(plan: Plan) -> Iterator[str]:
    """Variables with required parents whose table of counts would be too large to be asked for."""
    parents: dict[str, set[str]] = {}
    for source, target in plan.knowledge.required if plan.counted else ():
        parents.setdefault(target, {target}).add(source)
    for family in parents.values():
        cells = math.prod(len(plan.dictionary[name].levels) for name in family if name in plan.dictionary)
        if cells > MOST_CELLS or len(family) > MOST_IN_TABLE:
            yield " and ".join(map(repr, sorted(family)))


def _broken_privately(plan: Plan, privacy: Privacy) -> Iterator[tuple[str, str]]:
    """The part of `_broken_rules` that concerns private plans."""
    solver, preparation = plan.local_solver, plan.preparation
    if solver not in PRIVATE_SOLVERS:
        yield "local_solver", f"one of {', '.join(PRIVATE_SOLVERS)}, with [privacy]"
    if solver != "noisy-covariance" and plan.local_steps > _MOST_PRIVATE_STEPS:
        yield "local_steps", f"at most {_MOST_PRIVATE_STEPS} with [privacy]: every step shares the budget"
    used = {"intercept": "site", "scale": "pooled", "missing": "complete-cases"}
    if preparation is not None and any(getattr(preparation, name) != value for name, value in used.items()):
        yield "preparation", "of intercept 'site', scale 'pooled' and missing 'complete-cases' with [privacy]"
    for setting in ("feature_bounds", "second_moments"):
        if len(getattr(privacy, setting)) not in (0, 1, len(plan.column_names)):
            yield f"privacy.{setting}", "one value for all, or one for each column"
    if solver != "noisy-covariance" and privacy.smoothness == "estimated":
        if preparation is not None and privacy.feature_bounds:
            yield "privacy.feature_bounds", "empty with [preparation]: the data dictionary has ranges"
        if preparation is None and not privacy.feature_bounds:
            instead = "(or [preparation], and a data dictionary with ranges)"
            yield "privacy.feature_bounds", f"given for smoothness = 'estimated' {instead}"
    if plan.value_type == "float32" and privacy.moments_norm_bound**2 > LARGEST_SQUARE:
        yield "value_type", f"float64 with squared bounds above {LARGEST_SQUARE:g}"
    if not privacy.secure_aggregation:
        return
    if not plan.moments_rounds:
        yield "moments_rounds", "at least 1 with privacy.secure_aggregation"
    if plan.n_honest < FEWEST_HONEST:
        least = f"at least {FEWEST_HONEST} more than privacy.colluding, and at least 3, with secure aggregation"
        yield "n_participants", f"{least} (without: --set privacy.secure_aggregation=false)"
    colluding = plan.n_participants - plan.n_honest
    if privacy.retries > colluding:
        most = f"at most the number of colluding sites, {colluding}"
        yield "privacy.secure_aggregation_retries", f"{most}: a lost site is one of them"


_TABLES: dict[str, type[BaseModel]] = {
    "dictionary": Entry,
    "knowledge": Knowledge,
    "preparation": Preparation,
    "privacy": Privacy,
}

# Settings that earlier versions had: the value that now always holds, and what to do about another one.
_CONTINUATION = "leave it out; acyclicity_schedule = 'augmented' has settings"
_GONE: dict[str, tuple[Any, str]] = {
    "acyclicity": ("exponential", "leave it out; h(W) is tr exp(W o W) - d"),
    "acyclicity_penalty_max": (1e12, "leave it out; 1e12 is the largest"),
    "continuation_start": (0.1, _CONTINUATION),
    "continuation_end": (1000.0, _CONTINUATION),
    "continuation_share": (0.8, _CONTINUATION),
    "continuation_growth": (1.3, _CONTINUATION),
    "edge_penalty": ("auto", "leave it out; what an edge must gain depends on the rows"),
    "starts": ([], "leave it out; the search needs one start"),
    "zero_tolerance": (0.0, "leave it out, or set send_tolerance instead"),
}

# Settings of [privacy] under the names that earlier versions wrote into run folders.
_RENAMED = {"secure_sum": "secure_aggregation", "secure_sum_retries": "secure_aggregation_retries"}
