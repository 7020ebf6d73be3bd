"""Between functions of each other, rounding decides: no file or command tells a direction or an effect there."""

import csv
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.results.effect_report import effect_report
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_server.results.sentences import directions_in_words
from fedbnsl_workbench.report.effects import effect_table
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.run_files import read_run
from fedbnsl_workbench.simulate import simulate

NAMES = ("part", "rest", "total", "other")
TIED = {"part", "rest", "total"}


def tables() -> dict[str, Dataset]:
    found: dict[str, Dataset] = {}
    for k in range(2):
        rng = np.random.default_rng(k)
        part, rest, noise = rng.normal(size=(3, 300))
        X = np.column_stack([part, rest, part + rest, 0.7 * (part + rest) + noise])
        found[f"site-{k}"] = Dataset.of_values(NAMES, X, origin="here", warn=False)
    return found


@pytest.mark.parametrize("setting", [("standard", 20), ("standard", 0), ("lean", 0)], ids=str)
def test_edges_and_effects_between_functions_of_each_other_are_open(setting: tuple[str, int], tmp_path: Path) -> None:
    """The class alone would tell part -> total <- rest, with intervals of a width of rounding."""
    ready, draws = setting
    plan = Plan.load(ready).with_settings(n_participants=2, bootstrap=draws)
    result = simulate(plan, tables(), tmp_path / "run")
    assert [set(one) for one in result["verdict"]["functions"]] == [TIED]
    inside = [edge for edge in result["edges"] if {edge["source"], edge["target"]} <= TIED]
    assert inside
    for edge in inside:
        assert not edge["directed"]
        assert edge["directed_by"] in ("undecided", "nobody")
        assert edge["standard_error"] is edge["interval"] is None
        assert edge["bootstrap"] is None or edge["bootstrap"]["forward"] == edge["bootstrap"]["backward"] == 0.0
    with (tmp_path / "run" / "edges.csv").open(encoding="utf-8") as file:
        directed = {(row["source"], row["target"]): row["directed"] for row in csv.DictReader(file)}
    assert {directed[edge["source"], edge["target"]] for edge in inside} == {"0"}

    network = read_network(tmp_path / "run")
    for source in TIED:
        for target in TIED - {source}:
            report = effect_report(network, [NAMES.index(source)], NAMES.index(target), set(range(4)))
            assert (report["verdict"], report["open"]) == ("not identified", True)
            assert "are functions of each other, and the tables cannot tell" in report["in_words"][0]
            assert all(one["interval"] is None for row in report["effects"] for one in row["values"])
    run = read_run(tmp_path / "run")
    shown = [row for row in effect_table(run).rows if {row.source, row.target} <= TIED]
    assert all(row.said == "not identified: a direction is open" and row.interval is None for row in shown)
    verdict = result["verdict"]
    tied = "they tie functions of each other" in directions_in_words(verdict)
    assert tied == (verdict["directed_by"]["undecided"] > 0 and not draws)
    assert "functions of each other" in write_report(tmp_path / "run").read_text(encoding="utf-8")
