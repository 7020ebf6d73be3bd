"""What result.json holds, as types: `read_result` refuses a file that differs, so that its readers need not check.

A number is null where it is not known or not finite. What only newer versions of fedbnsl write has a default here.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedbnsl.rounds.kinds import KINDS
from fedbnsl_server.inference.draws import MAJORITY

Number = float | None
Numbers = list[Number]
Pair = Annotated[Numbers, Field(min_length=2, max_length=2)]


def _known(ends: Any) -> Any:
    """No interval where one of its ends is not known."""
    held: Any = ends  # beside its type, which says nothing of what is in it
    return None if isinstance(ends, list) and None in held else held


Interval = Annotated[
    Annotated[list[float], Field(min_length=2, max_length=2)] | None,
    BeforeValidator(_known),
]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]
Texts = list[str]
Names = Annotated[Texts, Field(min_length=2, max_length=2)]


def _time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


def _kind(name: str) -> str:
    if name not in KINDS:
        raise ValueError(f"expected one of {', '.join(KINDS)}")
    return name


Time = Annotated[str, AfterValidator(_time)]
KindOfRound = Annotated[str, AfterValidator(_kind)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Coefficient(_Part):
    """Of one column in the regression of another; also the numbers of an edge."""

    source: str
    target: str
    weight: Number
    standardised: Number = None
    standard_error: Number = None
    interval: Interval = None
    standardised_interval: Interval = None


class Shares(_Part):
    """Of the draws of the bootstrap: the pair is adjacent, source -> target, target -> source."""

    adjacent: float
    forward: float
    backward: float

    @property
    def undirected(self) -> float:
        """Share of the draws in which the pair is adjacent without a direction."""
        return max(0.0, self.adjacent - self.forward - self.backward)


class OfSites(_Part):
    """Whether the sites agree about a coefficient; by site its estimate and standard error."""

    q: Number
    p: Number
    i2: Number
    estimates: dict[str, Pair]


class WithoutASite(_Part):
    """In how many searches without one site each a pair was adjacent."""

    adjacent: Count
    of: Count


class DirectionEvidence(_Part):
    """Why sites or noise direct an edge that the class leaves open."""

    log_likelihood: Number = None
    sites: Texts = []


class NoiseOfEdge(_Part):
    """How likely what noise shows is, if the edge has the direction as named, and if it has the other one.

    `share_of_rows`: of the rows of all sites, those of sites that tell of the edge.
    """

    p: Share
    p_reversed: Share
    share_of_rows: Share = 1.0


class Change(_Part):
    """A number of a mechanism at a site and elsewhere: the coefficient of a parent, or the residual variance."""

    of: str
    here: Number
    elsewhere: Number


class DifferentMechanism(_Part):
    """How a variable follows from its parents differently at a site."""

    site: str
    variable: str
    log_likelihood: Number
    changes: list[Change]
    says: str


class Experiments(_Part):
    """Sites as experiments: edges that the class leaves open, how many were compared, and mechanisms that differ."""

    open_edges: Count
    compared: Count
    mechanisms: list[DifferentMechanism]


class Edge(Coefficient):
    """Between variables."""

    directed: bool = True
    directed_by: str = ""
    evidence: DirectionEvidence | None = None
    noise: NoiseOfEdge | None = None
    source_level: str = ""
    target_level: str = ""
    coefficients: list[Coefficient] = []
    bootstrap: Shares | None = None
    sites: OfSites | None = None
    without_a_site: WithoutASite | None = None


class OfSite(_Part):
    """A site's own ratio; without an interval it is far from the others', and told roughly."""

    estimate: Number
    interval: Interval


class Estimate(_Part):
    """By one column, of one level of a child against its reference level, of a count, or of a mean."""

    source: str
    target: str
    estimate: Number
    interval: Interval
    log_ratio: Number
    standard_error: Number
    curved: bool
    sites: dict[str, OfSite] | None = None


class SitesAgree(_Part):
    """Whether the sites have the same ratios, by a score test, or tables, by Pearson's chi-square."""

    q: float
    degrees: float
    p: float


class Regression(_Part):
    """Of a child, by its parents."""

    child: str
    kind: Literal["odds ratio", "rate ratio", "mean difference"]
    rows: Count
    sites: Texts
    odd_site: str | None = None
    overdispersion: Number
    agreement: SitesAgree | None
    estimates: list[Estimate]
    notes: Texts
    codes: Texts


class Taken(_Part):
    """How a variable was taken, what it is given its parents, and both in words with the reason."""

    form: Literal["line", "curve", "table", "indicators", "indicator", "ranks", "unused"]
    family: Literal["linear", "curved", "table", "regression"]
    how: str
    why: str


class Unsure(Shares):
    """A pair without an edge that some draws have one between."""

    source: str
    target: str


_ROUNDING = 1e-9
Mark = Literal["tail", "arrow", "circle"]
_AT_SOURCE, _AT_TARGET = {"tail": "-", "circle": "o", "arrow": "<"}, {"tail": "-", "circle": "o", "arrow": ">"}


class DrawnMarks(_Part):
    """Of the draws of the bootstrap: the pair is linked, each mark is the same, both ends have an arrowhead."""

    adjacent: float
    mark_source: float
    mark_target: float
    hidden_cause: float


class Link(_Part):
    """Two variables with an edge if causes may be hidden, and what the marks at its ends say."""

    source: str
    target: str
    mark_source: Mark
    mark_target: Mark
    says: str
    bootstrap: DrawnMarks | None = None

    @property
    def marks(self) -> str:
        """As people draw the edge."""
        return f"{_AT_SOURCE[self.mark_source]}-{_AT_TARGET[self.mark_target]}"

    @property
    def points(self) -> bool:
        """Whether the one arrowhead is at the target, so that a weight of source -> target agrees with the marks."""
        return self.mark_target == "arrow" and self.mark_source != "arrow"

    def is_doubtful(self, majority: float) -> bool:
        """Whether less than this share of the draws have the link with one of the marks."""
        of = self.bootstrap
        return of is not None and min(of.mark_source, of.mark_target) < majority - _ROUNDING

    @property
    def turned(self) -> "Link":
        """The same link, from target to source."""
        of = self.bootstrap
        ends = {"mark_source": self.mark_target, "mark_target": self.mark_source}
        shares = of and of.model_copy(update={"mark_source": of.mark_target, "mark_target": of.mark_source})
        return self.model_copy(update={"source": self.target, "target": self.source, **ends, "bootstrap": shares})


class Adjusted(_Part):
    """An effect that the marks identify, what is adjusted for, and the share of the draws that allow the same."""

    source: str
    target: str
    adjusted_for: Texts
    share: float


class NoPath(_Part):
    """A variable on which another one does not act by the marks, and the share of the draws that agree.

    Marks rest on straight lines: the pairs of the verdict's `not_described` may be linked along a curve.
    """

    source: str
    target: str
    share: float


class HiddenCauses(_Part):
    """The partial ancestral graph: what holds if common causes are hidden, and the edges of the class that do not."""

    links: list[Link]
    gone: list[Names]
    untested: list[Names] = []  # it may be no link, and nothing follows from it
    legal: bool | None = None  # whether it is that of some graph; None: of an earlier version, which did not look
    effects: list[Adjusted] | None = None
    no_path: list[NoPath] | None = None

    def by_pair(self) -> dict[tuple[str, str], Link]:
        """Each link by its two ends, either way round."""
        return {(one.source, one.target): one for link in self.links for one in (link, link.turned)}


class Unused(_Part):
    """A variable, or one of its levels, that the result is not about."""

    variable: str
    level: str | None
    why: str


class Dropped(_Part):
    """An edge that was removed to break a cycle."""

    source: str
    target: str
    weight: Number
    before: str


class Fit(_Part):
    """Of one variable given its parents."""

    r2: Number
    intercept: Number
    residual_variance: Number
    residual_correlation: list[Numbers] | None = None


class DependentRows(_Part):
    """How much rows of a group depend on each other, by column."""

    other_rows: Annotated[float, Field(gt=0.0)]
    counted: Annotated[float, Field(gt=0.0)]
    icc: dict[str, Share]
    residual_icc: dict[str, Share]


class Estimation(_Part):
    """What the numbers of confidence rest on."""

    n_samples: Annotated[float, Field(gt=0.0)]
    noise_std: Annotated[float, Field(ge=0.0)]
    draws: Count
    widened: dict[str, dict[str, Annotated[float, Field(gt=1.0)]]] = {}
    dependent_rows: DependentRows | None = None


class Verdict(_Part):
    """What was assumed, tested and contradicted."""

    assumed: Texts
    tested: Texts | None = None
    not_tested: Texts = []
    contradicted: Texts
    reasons: Texts = []
    functions: list[Texts] = []
    not_described: list[Annotated[Texts, Field(min_length=2, max_length=2)]] = []
    # Pairs of variables without an edge whose residuals are correlated beyond chance, at most twenty.
    unexplained: list[Annotated[Texts, Field(min_length=2, max_length=2)]] = []
    directed_by: dict[str, Count]
    draws: Count | None = None
    majority: float = MAJORITY
    incomplete: Texts = []
    not_testable: Texts = ["common causes that no table has"]
    hidden_causes_seen: Texts = []  # pairs with arrowheads at both ends, in enough draws
    few_rows: Texts = []
    outlying: Texts = []
    withheld: Texts = []
    complete_cases: Texts = []


class Gaps(_Part):
    """Values that are missing, and EM, which used the rows that have gaps."""

    iterations: Count
    converged: bool
    known_share: Number
    values: dict[str, dict[str, Count]]
    never_together: list[list[str]]
    complete_rows: Count | None = None
    differ: dict[str, Texts] = {}


class GivenParents(_Part):
    """Probabilities of the levels of a variable, given one combination of levels of its parents."""

    given: Texts
    records: Annotated[float, Field(ge=0.0)]
    probabilities: list[float]


class Category(_Part):
    """A variable whose parents were found by counts, and whether sites agree on it given these."""

    parents: Texts
    levels: Texts
    rows: list[GivenParents]
    agreement: SitesAgree | None = None


class CurvedEffect(_Part):
    """How a variable changes with a parent, from its value at a parent at the site's mean; a line between points."""

    source: str
    target: str
    at: list[float]
    change: list[float]
    error: list[float]
    spread: Number = None
    p_straight: Number = None


class ChangeBelow(_Part):
    """How a variable changes in all with a number before it."""

    target: str
    change: list[float]
    residual_variance: float


class CurvedTotal(_Part):
    """Total effects of a number with these parents, likewise; the covariance is for a residual variance of 1."""

    source: str
    adjusted_for: Texts
    at: list[float]
    covariance: list[list[float]]
    below: list[ChangeBelow]


class Curves(_Part):
    """Numbers whose effects bend."""

    rows: Count
    variables: Texts
    effects: list[CurvedEffect]
    total: list[CurvedTotal] = []


class Outlying(_Part):
    """Values of a column that lie far apart from all others, and count as missing."""

    above: float | None = None
    below: float | None = None
    values: dict[str, Count]


class Bin(_Part):
    """Predicted probabilities that are about the same."""

    forecasts: Count
    predicted: float
    came_true: Share


class Scores(_Part):
    """How well the network describes a variable in some rows; null where they, or sites, do not tell it."""

    rows: Count
    left_out: Count
    log_likelihood: Number = None
    of_independence: Number = None
    own: Number = None
    r2: Number = None
    within: Number = None
    auc: Number = None
    auc_error: Number = None
    calibration_error: Number = None
    pit: list[Share] | None = None
    levels: list[Share] | None = None
    calibration: list[Bin] | None = None


class BothScores(_Part):
    """With the means of each site, and with those of all sites."""

    own_means: Scores
    common_means: Scores


class LeftOutScores(_Part):
    """Of numbers that a site had no part in, in its rows."""

    r2: Number
    gain: Number


class LeftOut(LeftOutScores):
    """Over all sites, each with the numbers of the others."""

    sites: dict[str, LeftOutScores]


class ScoresOfAll(BothScores):
    """In rows of all sites, and of each, there without what has bins."""

    left_out: LeftOut | None = None
    sites: dict[str, BothScores]


class Validation(_Part):
    """Of the network, on the rows that it was learned from."""

    network: str
    variables: dict[str, ScoresOfAll]


class Preparation(_Part):
    """Of the columns."""

    intercept: str
    scale: str
    missing: str
    centres: dict[str, Number] | None
    scales: dict[str, Number] | None
    means: dict[str, Number] | None = None


class Amount(_Part):
    """Of bytes in one direction."""

    formula: Count
    serialised: Count


class UpAndDown(_Part):
    """To the coordinator and from it."""

    up: Amount
    down: Amount


class AllBytes(UpAndDown):
    """Of a run."""

    control: Count
    meaning: str


class Site(_Part):
    """What a site took part with."""

    n_samples: Count
    rows_used: Count | None = None
    rounds_contributed: Count
    bytes: UpAndDown
    control_bytes: Count


class EjectedSite(Site):
    """One that was taken out of the run."""

    site: str
    after_round: Count
    from_round: Count | None
    time: str


class Largest(_Part):
    """The influence of a site in the round where it was largest."""

    largest: float
    round: Count
    kind: KindOfRound
    rounds_above_limit: Count
    variables: Texts


class Odd(_Part):
    """The one site without which all others agree."""

    site: str
    differs_in: list[Names]
    edges_lost_without: list[Names]
    edges_gained_without: list[Names]
    left_out_by_median: bool


class Influence(_Part):
    """Of the sites."""

    limit: float
    unknown_because: str
    sites: dict[str, Largest]
    odd: Odd | None = None


class InfluenceNow(_Part):
    """Of a site in one round."""

    ratio: float
    variables: Texts


class FindingEntry(_Part):
    """What a site or the coordinator found in one round."""

    code: str
    variables: Texts
    site: str
    count: int = 0


class Round(_Part):
    """One complete round."""

    round: Annotated[int, Field(ge=1)]
    kind: KindOfRound
    contributed: Texts
    acyclicity: Number
    edges: Count
    undirected: Count = 0
    ended_in: str = ""
    local_s: float
    global_s: float
    bytes: dict[str, UpAndDown]
    influence: dict[str, InfluenceNow] = {}
    findings: list[FindingEntry] = []
    left_out: Texts = []


class Loss(_Part):
    """Of privacy, of one site."""

    epsilon: float
    delta: float
    accounting: str = "zCDP"
    price_zcdp: float
    contributed_zcdp: float
    price_zcdp_against_all_others: float | None = None


class Privacy(_Part):
    """Of a private run."""

    guarantee: str
    no_guarantee_because: Texts
    sites: dict[str, Loss]


class Seconds(_Part):
    """Of the whole run."""

    total: float
    local: float
    global_: float = Field(alias="global")


class Manifest(_Part):
    """Where a result comes from."""

    run: str
    study: str | None = ""  # null where it had the name of a site that was forgotten
    plan_digest: str
    private: bool
    seeds: dict[str, int]
    versions: dict[str, str]
    site_versions: dict[str, dict[str, str]]
    created_at: Time
    resumed_at: list[Time]
    ended_at: Time
    sha256: dict[str, str]


class Result(_Part):
    """The whole file."""

    state: Literal["finished", "interrupted", "failed"]
    reason: str
    orientation: str
    variables: Texts
    columns: dict[str, str] | None = None
    units: dict[str, str] = {}
    levels: dict[str, Texts] = {}
    references: dict[str, str] = {}
    graph_class: Literal["cpdag", "dag-equal-variance"] = "dag-equal-variance"
    verdict: Verdict = Verdict(assumed=[], tested=[], contradicted=[], directed_by={})
    edges: list[Edge]
    regressions: list[Regression] = []
    rarely_drawn: list[Names] = []
    unsure: list[Unsure] = []
    paths: dict[str, dict[str, float]] | None = None
    hidden_causes: HiddenCauses | None = None
    experiments: Experiments | None = None
    fit: dict[str, Fit] = {}
    taken: dict[str, Taken] = {}
    estimation: Estimation | None = None
    dropped_edges: list[Dropped]
    preparation: Preparation | None = None
    gaps: Gaps | None = None
    categories: dict[str, Category] | None = None
    curves: Curves | None = None
    outlying: dict[str, Outlying] = {}
    validation: Validation | None = None
    warnings: Texts
    warning_codes: Texts = []
    unused: list[Unused] = []
    influence: Influence = Influence(limit=0.0, unknown_because="an older run did not look", sites={})
    not_written: dict[str, str] = {}
    privacy: Privacy | None
    acyclicity: Number
    sites: dict[str, Site]
    ejected: list[EjectedSite] = []
    bytes: AllBytes
    seconds: Seconds
    rounds: list[Round]
    manifest: Manifest

    @model_validator(mode="after")
    def _names_belong_together(self) -> "Result":
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        columns = self.columns or dict.fromkeys(self.variables, "")
        variables, sites = set(self.variables), {*self.sites, *(one.site for one in self.ejected)}
        if len(variables) < len(self.variables):
            yield "two variables have the same name"
        if self.columns and {*self.columns.values()} != variables:
            yield "columns and variables do not belong together"
        pairs = [(one.source, one.target) for part in (self.edges, self.unsure, self.dropped_edges) for one in part]
        pairs += [(source, target) for source, target in self.rarely_drawn]
        if any(name not in variables for pair in pairs for name in pair):
            yield "an edge has an end that is no variable"
        if self.paths is not None and {*self.paths, *(name for led in self.paths.values() for name in led)} - variables:
            yield "a path has an end that is no variable"
        ends = [name for edge in self.edges for one in edge.coefficients for name in (one.source, one.target)]
        if any(name not in columns for name in ends):
            yield "a coefficient has an end that is no column"
        regressions = [(one.child, [*one.estimates]) for one in self.regressions]
        if any(child not in variables for child, _ in regressions) or any(
            name not in columns for _, told in regressions for one in told for name in (one.source, one.target)
        ):
            yield "a regression is of no variable, or of no column"
        prepared = () if self.preparation is None else (self.preparation.centres, self.preparation.scales)
        if any(numbers is not None and numbers.keys() != columns.keys() for numbers in prepared):
            yield "preparation and columns do not belong together"
        if self.outlying.keys() - columns.keys():
            yield "outlying values and columns do not belong together"
        bent = self.curves or Curves(rows=0, variables=[], effects=[])
        bent_in = {*(one.source for one in bent.effects), *(one.source for one in bent.total)}
        if {*bent.variables, *bent_in} - columns.keys():
            yield "curves and columns do not belong together"
        parents = {name for one in (self.categories or {}).values() for name in one.parents}
        if {*(self.categories or {}), *parents} - variables:
            yield "categories and variables do not belong together"
        if (self.fit.keys() | self.taken.keys()) - variables:
            yield "fit, or how variables were taken, and variables do not belong together"
        scored = {} if self.validation is None else self.validation.variables
        if scored.keys() - variables or any(one.sites.keys() - sites for one in scored.values()):
            yield "scores of the network are of no variable, or of a site that is not listed"
        named = {site for one in self.rounds for site in (*one.contributed, *one.bytes, *one.influence)}
        if named - sites:
            yield "a round names a site that is not listed"
        if any(one.round != t for t, one in enumerate(self.rounds, 1)):
            yield "the rounds are not numbered from 1 on"
