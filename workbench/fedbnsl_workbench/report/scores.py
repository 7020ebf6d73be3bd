"""How well the network describes the rows of the sites: a table by variable, and small charts."""

from collections.abc import Mapping
from typing import Any

from fedbnsl_workbench.networks.scores import cells_of
from fedbnsl_workbench.report import charts

_SIGNS = {"R^2": "R²"}


def scored(validation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Rows of the table, in the order of `networks.scores.HEADS`, and the charts; None: the run has no scores."""
    if validation is None:
        return None
    variables: Mapping[str, Any] = validation["variables"]
    sites = list(next(iter(variables.values()))["sites"]) if variables else []
    return {
        "variables": [
            {"name": name, "cells": list(map(_in_signs, cells_of(both)))} for name, both in variables.items()
        ],
        "by_site": {
            site: [
                {"name": name, "cells": list(map(_in_signs, cells_of(_at(both, site))))}
                for name, both in variables.items()
            ]
            for site in sites
        },
        "of_sites": charts.scores_by_site(variables, sites),
        "as_told": charts.as_told(variables),
    }


def _at(both: Mapping[str, Any], site: str) -> dict[str, Any]:
    told = both["left_out"]
    return {**both["sites"][site], "left_out": None if told is None else told["sites"].get(site)}


def _in_signs(text: str) -> str:
    for written, sign in _SIGNS.items():
        text = text.replace(written, sign)
    return text
