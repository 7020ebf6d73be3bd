"""The network as objects of pgmpy, and its graph as one of igraph, where these packages are installed."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fedbnsl.errors import SetupError
from fedbnsl_server.results.network_of_run import NetworkOfRun
from fedbnsl_workbench.networks.exports.distributions import OfLevels, OfNumbers, distributions


def pgmpy_network(fitted: NetworkOfRun) -> Any:
    """A DiscreteBayesianNetwork where all variables have levels, a LinearGaussianBayesianNetwork where all are numbers.

    Raises
    ------
    SetupError
        If there are variables of both kinds, which pgmpy has no network for, or pgmpy is not installed.
    """
    of, levels = distributions(fitted), fitted.levels
    if levels and len({*of} & {*levels}) < len(of):
        raise SetupError(
            "pgmpy has no network of numbers and levels together",
            remedy="bnlearn has one, if no variable with levels depends on a number: `fedbnsl network export RUN --as "
            "bnlearn`; --as json holds every network.",
        )
    models = _installed("pgmpy.models", "pgmpy")
    arcs = [(parent, name) for name, one in of.items() for parent in one.parents]
    model = models.DiscreteBayesianNetwork() if levels else models.LinearGaussianBayesianNetwork()
    model.add_nodes_from(fitted.variables)
    model.add_edges_from(arcs)
    for name, one in of.items():
        model.add_cpds(_table(name, one, levels) if isinstance(one, OfLevels) else _line(name, one))
    model.check_model()
    return model


def _table(name: str, of: OfLevels, levels: Mapping[str, Any]) -> Any:
    n = of.table.shape[-1]
    axes = (name, *of.parents)
    return _installed("pgmpy.factors.discrete", "pgmpy").TabularCPD(
        name,
        n,
        of.table.reshape(-1, n).T,
        evidence=list(of.parents) or None,
        evidence_card=[len(levels[one]) for one in of.parents] or None,
        state_names={one: list(levels[one]) for one in axes},
    )


def _line(name: str, of: Any) -> Any:
    if not isinstance(of, OfNumbers):
        raise TypeError(f"{name!r} is no number")
    beta = [float(of.intercepts), *of.slopes.tolist()]
    factors = _installed("pgmpy.factors.continuous", "pgmpy")
    return factors.LinearGaussianCPD(name, beta, of.noise_std, evidence=list(of.number_parents))


def igraph_graph(result: Mapping[str, Any]) -> Any:
    """A directed `igraph.Graph` with all that result.json says of an edge; one without a direction is there both ways.

    Raises
    ------
    SetupError
        If igraph is not installed.
    """
    names = list(result["variables"])
    graph = _installed("igraph", "igraph").Graph(directed=True)
    graph.add_vertices(names)
    place = {name: k for k, name in enumerate(names)}
    rows = [
        (way, edge)
        for edge in result["edges"]
        for way in ((edge["source"], edge["target"]), (edge["target"], edge["source"]))[: 1 if edge["directed"] else 2]
    ]
    keys = dict.fromkeys(key for _, edge in rows for key in edge)
    attributes = {key: [edge.get(key) for _, edge in rows] for key in keys}
    graph.add_edges([(place[one], place[other]) for (one, other), _ in rows], attributes)
    return graph


def _installed(module: str, package: str) -> Any:
    try:
        return import_module(module)  # here: no extra of fedbnsl brings it along
    except ImportError:
        raise SetupError(f"this needs {package}, which is not installed", remedy=f"pip install {package}") from None
