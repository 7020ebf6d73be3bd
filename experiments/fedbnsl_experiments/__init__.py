"""Tools for research and demonstrations. Neither a site nor the coordinator needs them.

Packages: `tables` makes data, `scoring` compares a graph with the truth, `report` shows a run, `trials` runs many
plans, `tuning` searches for settings, `comparators` has other methods, `reproduce` has the paper's tables and figures,
`bench` has the project's own figures, and `pages` defines the look of charts and HTML. Modules: `simulate` runs a
federation in one process, `localnet` runs one as real processes on this machine, `estimator` has the class for
notebooks, and `cli` has the commands.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbnsl_experiments.estimator import FedSparseBNSL

__all__ = ["FedSparseBNSL"]


def __getattr__(name: str) -> Any:
    # On demand: the class needs scikit-learn, which the commands of this package do without.
    if name == "FedSparseBNSL":
        from fedbnsl_experiments.estimator import FedSparseBNSL

        return FedSparseBNSL
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
