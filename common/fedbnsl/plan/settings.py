"""Every public setting of a run with its default and its limits, and what follows from the settings together.

Which settings go together, `rules` says; a set of settings that keeps these rules is a `plan`.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedbnsl.plan.absent import Absent
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.interventions import Intervention
from fedbnsl.plan.knowledge import Knowledge, VariableName
from fedbnsl.plan.limits import (
    MOST_CELLS_A_ROUND,
    MOST_CURVATURE_NUMBERS,
    MOST_HINGE_NUMBERS,
    MOST_NOISE_NUMBERS,
    MOST_REGRESSION_NUMBERS,
    MOST_VALIDATION_NUMBERS,
)
from fedbnsl.plan.preparation import Preparation
from fedbnsl.plan.privacy_settings import Positive, Privacy, Real, Unit

# Strict: `rounds = true` or `rounds = "1"` is a slip, not a number.
Count = Annotated[int, Field(strict=True)]
Sites = Annotated[Count, Unit("sites")]
Rounds = Annotated[Count, Unit("rounds")]
Seconds = Annotated[Positive, Unit("s")]
NonNegative = Annotated[Real, Field(ge=0)]

Solver = Literal["pgcd", "closed-form", "frank-wolfe", "dp-pgcd", "dp-pgcd-laplace", "noisy-covariance"]
Consensus = Literal["mean", "median", "trimmed-mean"]
GraphClass = Literal["cpdag", "dag-equal-variance"]
HiddenCauses = Literal["allowed", "excluded"]
FinalSearch = Literal["none", "steps"]
Validation = Literal["none", "sums", "at_site"]
PRIVATE_SOLVERS = ("dp-pgcd", "dp-pgcd-laplace", "noisy-covariance")

_BYTES_A_CELL = 8  # a step to the next cell and a count, mostly one or two bytes each

MOST_LEVELS = 70
"""Of a variable whose records are counted: tables of two variables then have fewer than 5,000 cells."""

LARGEST_PENALTY = 1e12
"""At which the coefficient of h(W), or the weight of its square, stops growing."""


class Settings(BaseModel):
    """The settings of a run, each within its own limits; every field states unit and range."""

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
        description="cpdag, after moments_rounds, where every variable has levels, at most 70: rounds in which the "
        "sites count the records in each combination of levels of a few variables, by which the coordinator improves "
        "the graph, or finds that straight effects of ordinal variables describe them better; other tables have no "
        "such rounds; 0: none; always 0 with [privacy]",
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
        "depend on each other; the result names pairs where they do not. With [privacy] no round is added: moments of "
        "residuals are those of squares of numbers, too, where the noise is small",
    )

    look_at_noise: bool = Field(
        default=False,
        description="cpdag, without [privacy]: whether one more round tells edges that second moments leave without a "
        "direction by the shape of noise: where noise is not normal, what the parents of a variable leave of it is "
        "independent of them in one direction alone",
    )

    tell_means: bool = Field(
        default=False,
        description="with [preparation] and moments_rounds: whether sites tell the means of their columns, so that the "
        "network can predict and draw values as tables have them; without, it knows of differences from the means of a "
        "site alone. No round is added. With [privacy] they are those that the statistics have paid for",
    )

    validation: Validation = Field(
        default="none",
        description="how the sites score the learned network on their rows: log-likelihood beside independence and the "
        "site's own fit, R^2, intervals, calibration, area under the ROC curve. sums, without [privacy]: in one more "
        "round they send exact sums by variable, and the result tells scores of all sites and of each; at_site: each "
        "site keeps its own scores, in validation.json, and nothing is sent; none: the network is not scored",
    )

    # What the graph says
    graph_class: GraphClass = Field(
        default="dag-equal-variance",
        description="dag-equal-variance: directions that the data leave open rest on equal noise variances in the "
        "tables' units; cpdag (with moments_rounds): edges are directed only where every DAG that fits the data as "
        "well agrees, or knowledge tells; the others stay undirected",
    )
    hidden_causes: HiddenCauses = Field(
        default="allowed",
        description="cpdag: allowed: the result also has the marks that hold if common causes are missing from the "
        "tables, and says which effects they leave open; excluded: arrows and effects rest on the assumption that none "
        "is missing. Neither costs a message",
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
    interventions: tuple[Intervention, ...] = Field(
        default=(),
        description="cpdag, without [privacy]: which variables were set at which site, as in an arm of a trial; a list "
        "of {site, variables}, or tables [[interventions]] at the end of the file",
    )
    knowledge: Knowledge = Field(default=Knowledge(), description="required and forbidden edges, tiers of variables")

    # What may be learned about one record
    privacy: Privacy | None = Field(default=None, description="what a private run may spend; absent: no privacy")

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

    @property
    def needed(self) -> int:
        """Sites that must contribute to every round."""
        return self.quorum or self.n_participants

    @property
    def weighs_rows(self) -> bool:
        """Whether a site's weight in means over sites is its rows; otherwise each site has the same."""
        return self.preparation is not None and self.preparation.weighting == "rows"

    @property
    def counts_rows_of_persons(self) -> bool:
        """Whether a private run looks at all rows of a person who is one record, not at their means."""
        by_rows = self.privacy is not None and self.privacy.persons_by == "rows"
        return by_rows and self.dictionary.rows.averages

    @property
    def sends_between_rows(self) -> bool:
        """Whether second moments come with those between two rows of a group, so that rows count as dependent."""
        return self.privacy is None and self.moments_rounds > 0 and self.dictionary.rows.keeps_rows

    @property
    def tells_hidden_causes(self) -> bool:
        """Whether the result has marks that hold if common causes are hidden, where its moments give them."""
        return self.hidden_causes == "allowed" and self.graph_class == "cpdag"

    @property
    def no_experiments_because(self) -> Literal["", "class", "privacy", "consensus", "preparation", "groups", "levels"]:
        """Why a run does not take sites that differ for experiments; empty: it does.

        It compares moments of each site about the site's own means, of independent rows and numbers.
        """
        by, dictionary = self.preparation, self.dictionary
        if self.graph_class != "cpdag" or not self.moments_rounds:
            return "class"
        if self.privacy is not None:
            return "privacy"
        if self.consensus != "mean":
            return "consensus"
        if by is None or (by.intercept, by.weighting) != ("site", "rows"):
            return "preparation"
        if dictionary.rows:
            return "groups"
        entries = (dictionary[name] for name in dictionary.of_run(self.variables) if name in dictionary)
        return "levels" if any(entry.kind != "continuous" for entry in entries) else ""

    @property
    def set_at(self) -> dict[str, frozenset[str]]:
        """By site, variables that were set there."""
        return {one.site: frozenset(one.variables) for one in self.interventions}

    @property
    def completes(self) -> bool:
        """Whether EM completes the sums of rows with gaps."""
        return self.privacy is None and self.preparation is not None and self.preparation.missing == "em"

    @property
    def leaves_out_outlying(self) -> bool:
        """Whether values that lie far apart from all others count as missing."""
        return self.completes and self.preparation is not None and self.preparation.outlying == "missing"

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
        """The variables of a run without levels, or with too many to be counted."""
        dictionary = self.dictionary
        entries = {name: dictionary[name] for name in dictionary.of_run(self.variables) if name in dictionary}
        return tuple(name for name, one in entries.items() if not one.has_levels or len(one.levels) > MOST_LEVELS)

    @property
    def counted(self) -> bool:
        """Whether records are counted: only where all variables have levels, and rows are independent.

        Beside numbers they are not used: what counts know better of two categories would stay in the score where a
        number explains their dependence, and give false edges.
        """
        searched = self.moments_rounds > 0 and self.graph_class == "cpdag" and self.consensus == "mean"
        described = bool(self.dictionary) and not self.dictionary.rows
        return self.counts_rounds > 0 and searched and described and not self.uncountable

    @property
    def grades(self) -> tuple[str, ...]:
        """The ordinal variables of a run."""
        names = self.dictionary.of_run(self.variables) if self.dictionary else ()
        return tuple(name for name in names if name in self.dictionary and self.dictionary[name].kind == "ordinal")

    @property
    def not_counted(self) -> bool:
        """Whether several variables are categories, and are not counted since others are none."""
        return self.counts_rounds > 0 and bool(self.uncountable) and self.has_categories

    @property
    def has_categories(self) -> bool:
        """Whether several variables of the data dictionary are categories."""
        names = self.dictionary.of_run(self.variables) if self.dictionary else ()
        return sum(name in self.dictionary and self.dictionary[name].is_indicator for name in names) > 1

    @property
    def looks_for_curves(self) -> bool:
        """Whether a round tests straight lines."""
        searches = self.privacy is None and self.preparation is not None and self.moments_rounds > 0
        return self.look_for_curves and searches and not self.no_curves_because

    @property
    def searches_curves(self) -> bool:
        """Whether a round asks for hinges, to search the graph again with effects that bend."""
        by = self.preparation
        return (
            self.looks_for_curves
            and self.graph_class == "cpdag"
            and by is not None
            and (by.intercept, by.scale, by.weighting) == ("site", "pooled", "rows")
        )

    @property
    def may_ask_for_squares(self) -> bool:
        """Whether squares of numbers may be among the moments of a private run, which parabolas are told from.

        How much sites that lack columns, and so have more noise in some pairs, keep of them was not measured.
        """
        searches = self.privacy is not None and self.preparation is not None and self.moments_rounds > 0
        searches = searches and self.graph_class == "cpdag" and not self.absent
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
    def looks_at_noise(self) -> bool:
        """Whether a round asks for the shape of noise."""
        searches = self.privacy is None and self.preparation is not None and self.moments_rounds > 0
        searches = searches and self.graph_class == "cpdag"
        return self.look_at_noise and searches and not self.no_noise_because

    @property
    def no_noise_because(self) -> Literal["", "levels", "consensus", "groups"]:
        """Why a run that is to look at the shape of noise does not; empty: it does.

        Also means over the rows of groups have noise that differs, with how many rows these are.
        """
        return "groups" if self.dictionary.rows else self.no_curves_because

    @property
    def tells_means(self) -> bool:
        """Whether sites tell the means of their columns."""
        return self.tell_means and self.preparation is not None and self.moments_rounds > 0

    @property
    def sends_scores(self) -> bool:
        """Whether a round asks for sums that score the learned network."""
        return self.validation == "sums"

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
        numbers += MOST_HINGE_NUMBERS * self.searches_curves + MOST_NOISE_NUMBERS * self.looks_at_noise
        numbers += MOST_VALIDATION_NUMBERS * self.sends_scores
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
