"""fedbnsl: one directed acyclic graph learned from tables that never leave their sites.

The problem, over participants p = 1..P with private tables X^(p) of shape (n_p, d):

    min over B_1..B_P, W of   sum_p  1/(2 n_p) ||X^(p) - X^(p) B_p||_F^2 + lambda ||B_p||_1
    subject to                B_p = W for every p,    h(W) = tr(exp(W o W)) - d = 0

where W[i, j] is the weight of the edge i -> j. This package is the language that the coordinator (`fedbnsl_server`) and
the participants (`fedbnsl_client`) share; it imports neither. The names that Python programs use are found here all the
same, each loaded when it is asked for.

Examples
--------
>>> from fedbnsl import Plan
>>> Plan.load("standard").graph_class
'cpdag'
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbnsl.plan.dictionary import Dictionary as Dictionary
    from fedbnsl.plan.plan import Plan as Plan

__version__ = "0.1.0"

# Public names: the module that has each, and the distribution that has the module.
_PUBLIC = {
    "Plan": ("fedbnsl.plan.plan", "fedbnsl-site"),
    "Dictionary": ("fedbnsl.plan.dictionary", "fedbnsl-site"),
    "join": ("fedbnsl_client.joining", "fedbnsl-site"),
    "serve": ("fedbnsl_workbench.serving", "fedbnsl"),
    "simulate": ("fedbnsl_workbench.network", "fedbnsl"),
    "Network": ("fedbnsl_workbench.network", "fedbnsl"),
    "FedSparseBNSL": ("fedbnsl_workbench.estimator", "fedbnsl"),
}

# Set before any module imports grpc, which reads these variables on import. Its fork handlers break processes that
# start others. Its log is off, because our own errors tell people what went wrong on the wire.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, distribution = _PUBLIC[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        how = "install it from the project's wheels (docs/how-to/install-offline.md)"
        raise ImportError(f"fedbnsl.{name} is part of {distribution}: {how}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
