"""Research and demonstration: synthetic data, scores, simulation, local networks, benchmarks."""

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
