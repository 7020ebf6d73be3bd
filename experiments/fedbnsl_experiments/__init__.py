"""Research and demonstration: everything around a federation that neither a site nor the coordinator needs.

The rooms: `tables` makes data, `scoring` says how near a graph is to the truth, `report` shows a run, `trials` runs
many plans, `tuning` searches for settings, `comparators` are other methods, `reproduce` holds the paper's tables and
figures, `bench` the project's own figures, and `pages` the look of charts and HTML. `simulate` runs a federation in one
process, `localnet` one of real processes on this machine, `estimator` is the class for notebooks, and `cli` has the
commands.
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
