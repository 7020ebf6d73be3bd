"""What a result tells of how well the network describes the rows of the sites: scores by variable, of all and of each.

Scores of a site leave out its bins, whose sums over the sites are told: a run of many variables would have too many.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from fedbnsl_server.inference.left_out import LeftOut
from fedbnsl_server.inference.validation import Validation

_OF_ALL = ("pit", "calibration", "levels")


def validation_of(told: Validation | None) -> dict[str, Any] | None:
    """Scores of the network that a run has learned; None: the sites were not asked, or it has no numbers to score."""
    if told is None or not told.sites:
        return None
    from fedbnsl.network.fitted_network import FittedNetwork  # here: both load SciPy
    from fedbnsl.network.validation_scores import scores_of_both

    network, found = FittedNetwork.from_json(told.network), dict[str, Any]()
    for name in network.variables:
        of_sites = {site: sums[name] for site, sums in told.sites.items()}
        family, centre = network.network.families[name], network.centre(name)
        found[name] = {
            **scores_of_both(family, list(of_sites.values()), centre),
            "left_out": _left_out(told.left_out.get(name, {})),
            "sites": {site: _without_bins(scores_of_both(family, [one], centre)) for site, one in of_sites.items()},
        }
    return {"network": sha256(told.network.encode()).hexdigest(), "variables": found}


def _left_out(told: Mapping[str, LeftOut]) -> dict[str, Any] | None:
    """Of numbers of the other sites, R^2 and gain of log-likelihood a row, over all rows and by site."""
    if not told:
        return None
    rows = sum(one.rows for one in told.values())
    variance = sum(one.rows * one.variance for one in told.values())
    return {
        "r2": 1.0 - sum(one.rows * one.error for one in told.values()) / variance,
        "gain": sum(one.rows * one.gain for one in told.values()) / rows,
        "sites": {site: {"r2": 1.0 - one.error / one.variance, "gain": one.gain} for site, one in told.items()},
    }


def _without_bins(both: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {means: {key: one for key, one in told.items() if key not in _OF_ALL} for means, told in both.items()}
