"""What changed between two runs, edge by edge."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from class_runs import edge, small_run
from fedbnsl.cli import fedbnsl as root
from fedbnsl_workbench.networks.differences import differences


def result(*edges: dict[str, Any], unsure: tuple[dict[str, Any], ...] = (), names: str = "abcde") -> dict[str, Any]:
    return {
        "variables": list(names),
        "edges": list(edges),
        "unsure": list(unsure),
        "unused": [],
        "verdict": {"draws": 100},
    }


FIRST = result(
    edge("a", "b", 0.5, 1.0, "data"),
    edge("b", "c", 0.5, 0.9, "data"),
    edge("c", "d", 0.5, 0.8, "nobody"),
    edge("a", "d", 0.5, 0.7, "data"),
    edge("d", "e", 0.5, 0.6, "nobody"),
    edge("a", "f", 0.5, 0.6, "data"),
    names="abcdef",
)
SECOND = result(
    edge("a", "b", 0.5, 0.97, "data"),
    edge("c", "b", 0.5, 0.9, "data"),
    edge("d", "c", 0.5, 0.8, "data"),
    edge("a", "d", 0.5, 0.7, "nobody"),
    edge("b", "e", 0.5, 0.55, "data", bootstrap=None),
    unsure=({"source": "d", "target": "e", "adjacent": 0.45, "forward": 0.1, "backward": 0.3},),
    names="abcdeg",
)


def test_each_change_of_an_edge_is_named_with_the_shares_of_both_runs() -> None:
    told = differences(FIRST, SECOND)
    assert told["same"] == 1
    assert told["variables_of_one_alone"] == {"first": ["f"], "second": ["g"]}
    rows = {(row["source"], row["target"]): row for row in told["edges"]}
    assert {ends: row["what"] for ends, row in rows.items()} == {
        ("a", "d"): "left open",
        ("c", "b"): "turned",
        ("b", "e"): "came",
        ("d", "c"): "directed",
        ("d", "e"): "went",
    }
    assert rows["c", "b"]["first"] == {"edge": "b -> c", "share": 0.9}
    assert rows["d", "e"]["first"] == {"edge": "d -- e", "share": 0.6}
    assert rows["d", "e"]["second"] == {"edge": "", "share": 0.45}
    assert rows["b", "e"]["first"] == rows["b", "e"]["second"] | {"edge": ""}


def test_undirected_edges_are_alike_whichever_end_comes_first_and_pairs_without_an_edge_are_no_change() -> None:
    unsure = ({"source": "a", "target": "c", "adjacent": 0.2, "forward": 0.1, "backward": 0.1},)
    told = differences(
        result(edge("a", "b", 0.5, 1.0, "nobody"), unsure=unsure), result(edge("b", "a", 0.5, 1.0, "nobody"))
    )
    assert told["edges"] == []
    assert told["same"] == 1


def test_a_variable_of_which_a_run_tells_nothing_is_not_compared() -> None:
    hidden = SECOND | {"unused": [{"variable": "a", "level": None, "why": "hidden"}]}
    told = differences(FIRST, hidden)
    assert told["variables_of_one_alone"]["first"] == ["a", "f"]
    assert not any("a" in (row["source"], row["target"]) for row in told["edges"])


def test_the_command_compares_run_folders(tmp_path: Path) -> None:
    first = small_run(tmp_path / "first")
    second = small_run(tmp_path / "second", edges=[edge("a", "c", 0.9, 1.0, "data")], unsure=[])
    told = json.loads(CliRunner().invoke(root, ["network", "diff", str(first), str(second), "--json"]).stdout)
    assert told["same"] == 1
    assert {row["what"] for row in told["edges"]} == {"went"}
    assert len(told["edges"]) == 4
    shown = CliRunner().invoke(root, ["network", "diff", str(first), str(second)]).stdout
    assert "1 edge alike, 4 not" in shown
    assert "went" in shown


def test_a_run_without_draws_is_said_to_have_none(tmp_path: Path) -> None:
    first, second = small_run(tmp_path / "first"), small_run(tmp_path / "second", unsure=[])
    content = json.loads((second / "result.json").read_text(encoding="utf-8"))
    for one in content["edges"]:
        one["bootstrap"] = None
    content["verdict"]["draws"] = 0
    (second / "result.json").write_text(json.dumps(content), encoding="utf-8")
    shown = " ".join(CliRunner().invoke(root, ["network", "diff", str(first), str(second)]).stdout.split())
    assert f"{second} made no bootstrap draws: how sure its edges are is not known" in shown
    assert f"{first} made no" not in shown
