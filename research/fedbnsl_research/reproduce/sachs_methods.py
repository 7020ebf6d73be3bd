"""What learns a graph from the Sachs data, and with which settings: federations, and programs that see all rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_research.comparators.dagma_adapter import dagma_installed
from fedbnsl_research.comparators.pooled import (
    DAGMA_L1,
    NOTEARS_L1,
    TAU,
    Comparator,
    by_dagma,
    by_equal_variance,
    by_notears,
    by_sortnregress,
)
from fedbnsl_research.tables.sachs import N_SITES
from fedbnsl_workbench.scoring.evaluation import graph_of

ROUNDS = 100
"""The paper names no number of rounds for its runs without privacy on these data; 100 is that of its other runs."""

SPARSE = "Fed-Sparse-BNSL, paper's settings"
DENSE = "Fed-BNSL, paper's settings"
DP_SPARSE = "DP-Fed-Sparse-BNSL, epsilon 5"
DP_DENSE = "DP-Fed-BNSL, epsilon 5"
NOTEARS = "NOTEARS, all rows"

_PAPER = "by the paper, on the final scores of these same data (appendix, Real Data)"
_OURS = "fed-sparse as it is: chosen on generated graphs, before any look at these data"
_PRIVACY: Mapping[str, Any] = {"epsilon": 5.0, "smoothness": "exact"}


@dataclass(frozen=True)
class Federated:
    """A plan over the sites.

    Attributes
    ----------
    settings
        Of the plan, where it differs from the defaults, which are those of fed-sparse.
    transform
        Of every site's table, see `sachs.transformed`.
    chosen
        How the settings were found, for the page.
    """

    settings: Mapping[str, Any]
    transform: str
    chosen: str

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return Plan.parse({"n_participants": N_SITES, **self.settings})

    @property
    def private(self) -> bool:
        """Whether its result depends on noise."""
        return "privacy" in self.settings


@dataclass(frozen=True)
class Central:
    """A program that sees the (n, d) table of all sites, columns transformed over all rows; see `Federated`."""

    weights: Comparator
    settings: Mapping[str, Any]
    transform: str
    chosen: str

    def learn(self, X: Matrix) -> Mask:
        """(d, d) DAG of a table; weights are cut only if the settings have a threshold."""
        return graph_of(self.weights(X), self.settings.get("threshold", 0.0))


_SPARSE_SETTINGS: Mapping[str, Any] = {
    "acyclicity_schedule": "augmented",
    "acyclicity_penalty": 10_000.0,
    "acyclicity_growth": 1.0,
    "consensus_penalty": 5.0,
    "l1_weight": 1.0,
    "step_size": 0.1,
    "refit_rounds": 0,
}
_DENSE_SETTINGS: Mapping[str, Any] = {
    "acyclicity_schedule": "augmented",
    "acyclicity_penalty": 100_000.0,
    "acyclicity_growth": 1.0,
    "consensus_penalty": 10.0,
    "l1_weight": 0.1,
    "threshold": 0.1,
    "refit_rounds": 0,
}

FEDERATED: Mapping[str, Federated] = {
    SPARSE: Federated(
        {"local_solver": "pgcd", "rounds": ROUNDS, "threshold": 0.1, **_SPARSE_SETTINGS},
        "raw",
        f"{_PAPER}; rounds and local steps are not given there: {ROUNDS} rounds, and local steps to the tolerance",
    ),
    DENSE: Federated(
        {"local_solver": "closed-form", "rounds": ROUNDS, **_DENSE_SETTINGS},
        "raw",
        f"{_PAPER}; the rounds are not given there",
    ),
    DP_SPARSE: Federated(
        {"local_solver": "dp-pgcd", "rounds": 30, "local_steps": 30, "threshold": 0.0, "refit_threshold": 0.0}
        | {**_SPARSE_SETTINGS, "privacy": {**_PRIVACY, "clip": 15_000.0}},
        "raw",
        f"{_PAPER}; clipping is per record here, and its scale sums over d values, not d^2: the same C clips less",
    ),
    DP_DENSE: Federated(
        {"local_solver": "noisy-covariance", "rounds": 100, **_DENSE_SETTINGS}
        | {"privacy": {"epsilon": 5.0, "row_norm_bound": 4.0}},
        "raw",
        f"{_PAPER}; b = 4 taken as the norm that longer records are clipped to, which is nearly all of them",
    ),
    "Fed-Sparse-BNSL, fed-sparse": Federated({}, "raw", _OURS),
    "Fed-Sparse-BNSL, fed-sparse, standardised": Federated(
        {},
        "standardised",
        f"{_OURS}; each site standardises its columns, since lambda and the threshold mean nothing in units in which "
        "the columns' variances differ by orders of magnitude",
    ),
    "Fed-Sparse-BNSL, fed-sparse, log": Federated(
        {}, "log", f"{_OURS}; logarithms as is common for such measurements: beyond the paper"
    ),
}


_NOTEARS_SETTINGS = {"l1_weight": NOTEARS_L1, "threshold": TAU}
_BIC = {"edges along the order": "lasso with BIC"}
_ALL_ROWS = "its usual settings; columns centred over all rows"
_LOG = "as on the raw scale; logarithms: beyond the paper"

_CENTRAL: Mapping[str, Central] = {
    NOTEARS: Central(by_notears, _NOTEARS_SETTINGS, "centred", _ALL_ROWS),
    "DAGMA, all rows": Central(by_dagma, {"l1_weight": DAGMA_L1, "threshold": TAU}, "centred", _ALL_ROWS),
    "sortnregress, all rows": Central(by_sortnregress, _BIC, "centred", _ALL_ROWS),
    "equal variances, all rows": Central(by_equal_variance, _BIC, "centred", _ALL_ROWS),
    "NOTEARS, all rows, log": Central(by_notears, _NOTEARS_SETTINGS, "log", _LOG),
    "sortnregress, all rows, log": Central(by_sortnregress, _BIC, "log", _LOG),
    "equal variances, all rows, log": Central(by_equal_variance, _BIC, "log", _LOG),
}


def central_methods() -> dict[str, Central]:
    """The programs that see all rows; DAGMA only where it is installed."""
    return {name: each for name, each in _CENTRAL.items() if each.weights is not by_dagma or dagma_installed()}
