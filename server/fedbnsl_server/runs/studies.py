"""Runs by the study that they belong to."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class ListedRun(NamedTuple):
    """A run of a service, in the list of all."""

    name: str
    plan: str
    state: str
    study: str
    folder: Path


def in_studies(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Told runs, those of a study together, in the order of its first run; those without a study at the end."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in runs:
        found.setdefault(one["study"], []).append(one)
    alone = found.pop("", [])
    return [*(one for runs_of_study in found.values() for one in runs_of_study), *alone]
