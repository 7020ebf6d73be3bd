"""What users run around a federation: simulation, demo, report, and the class for notebooks.

Packages: `tables` makes data, `scoring` compares a graph with the truth, `report` shows a run, and `pages` defines the
look of charts and HTML. Modules: `simulate` runs a federation in one process, `localnet` runs one as real processes on
this machine, `estimator` has the class for notebooks, and `cli` has the commands.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbnsl_workbench.estimator import FedSparseBNSL

__all__ = ["FedSparseBNSL"]


def __getattr__(name: str) -> Any:
    # On demand: the class needs scikit-learn, which the commands of this package do without.
    if name == "FedSparseBNSL":
        from fedbnsl_workbench.estimator import FedSparseBNSL

        return FedSparseBNSL
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
