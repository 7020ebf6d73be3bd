"""Runs on tables of categories alone: counts decide about the graph, whatever the tables lack."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from command_line import run_command
from fedbnsl.errors import PlanError, RemoteProtocolError
from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Mask
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.losses.contingency import counted
from fedbnsl_client.participant import Participant
from fedbnsl_client.rounds import counts as counts_at_site
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.results.categories import FEW_RECORDS, categories_of
from fedbnsl_server.results.effect_report import effect_of
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_server.run import round_loop
from fedbnsl_server.sites.mailbox import Traffic, UpdateCheck
from fedbnsl_server.store import checkpoint
from fedbnsl_server.store.result_file import learned_class
from fedbnsl_workbench import simulate as simulate_module
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.simulate import simulate

LEVELS = {"a": 2, "b": 3, "c": 4, "d": 2, "e": 3}
NAMES = tuple(LEVELS)
# a -> c <- b, where c is odd as a + b is: no straight line shows how they act together; c -> d, and e by itself.
TRUE = np.zeros((5, 5), dtype=bool)
TRUE[0, 2] = TRUE[1, 2] = TRUE[2, 3] = True


def dictionary(levels: dict[str, int]) -> Dictionary:
    return Dictionary.model_validate(
        {
            name: {"kind": "binary" if k == 2 else "nominal", "levels": [f"{name}{level}" for level in range(k)]}
            for name, k in levels.items()
        }
    )


def table(n: int, seed: int) -> np.ndarray:
    """(n, 5) codes."""
    rng = np.random.default_rng(seed)
    a, b, e = (rng.random(n) < 0.3).astype(int), rng.integers(0, 3, n), rng.integers(0, 3, n)
    c = np.where(rng.random(n) < 0.8, (a + b) % 2 + 2 * (rng.random(n) < 0.5), rng.integers(0, 4, n))
    d = np.where(rng.random(n) < 0.85, c >= 2, rng.integers(0, 2, n))
    return np.column_stack([a, b, c, d, e]).astype(float)


def run(
    tables: list[np.ndarray], out: Path, *, levels: dict[str, int] = LEVELS, bootstrap: int = 0, **settings: Any
) -> dict[str, Any]:
    described = dictionary(levels)
    plan = Plan.load("standard").with_dictionary(described, origin="here")
    plan = plan.with_settings(n_participants=len(tables), bootstrap=bootstrap, **settings)
    read = {
        f"site-{k}": Dataset.of_values(tuple(levels), X, origin="here", dictionary=described, warn=False)
        for k, X in enumerate(tables, start=1)
    }
    return simulate(plan, read, out)


def kinds(result: dict[str, Any]) -> list[str]:
    return [entry["kind"] for entry in result["rounds"]]


def is_true(result: dict[str, Any]) -> bool:
    marks: Mask = learned_class(result)
    return bool((marks == cpdag(TRUE)).all())


def test_counts_find_what_straight_lines_do_not_see(tmp_path: Path) -> None:
    """Of an exclusive or, no two variables are dependent."""
    levels = {"x": 2, "y": 2, "either": 2}
    codes = np.random.default_rng(1).integers(0, 2, (2, 1000, 2))
    wrong = np.random.default_rng(2).random((2, 1000, 1)) < 0.1
    tables = list(np.concatenate([codes, codes.sum(axis=2, keepdims=True) % 2 ^ wrong], axis=2).astype(float))
    assert not run(tables, tmp_path / "moments", levels=levels, counts_rounds=0)["edges"]
    assert len(run(tables, tmp_path / "counts", levels=levels)["edges"]) == 2


def test_the_class_is_found_in_five_rounds_and_drawn_again(tmp_path: Path) -> None:
    result = run([table(1000, seed) for seed in range(3)], tmp_path / "run", bootstrap=20)
    assert is_true(result)
    assert [kind for kind in kinds(result) if kind in ("moments", "counts")] == ["moments"] * 2 + ["counts"] * 5
    assert all(edge["bootstrap"]["adjacent"] > 0.5 for edge in result["edges"])
    assert result["verdict"]["draws"] == 20
    assert any("straight lines between categories" in text for text in result["verdict"]["not_tested"])


def test_the_result_has_the_shares_of_levels_given_the_parents(tmp_path: Path) -> None:
    tables = [table(800, seed) for seed in range(2)]
    result = run(tables, tmp_path / "run")
    told, whole = result["categories"]["c"], np.concatenate(tables)
    assert told["parents"] == ["a", "b"]
    assert len(told["rows"]) == 6
    for row in told["rows"]:
        a, b = (int(level[1:]) for level in row["given"])
        of_row = whole[(whole[:, 0] == a) & (whole[:, 1] == b), 2]
        assert row["records"] == len(of_row)
        assert row["probabilities"] == pytest.approx([np.mean(of_row == k) for k in range(4)], abs=1e-6)
    network = json.loads((tmp_path / "run" / "lgbn.json").read_text(encoding="utf-8"))
    with_parents = {name for name, one in result["categories"].items() if one["parents"]}
    owners = {name: name.partition("=")[0] for name in network["nodes"]}
    assert network["families"] == {
        name: "table" if owner in with_parents else "linear" for name, owner in owners.items()
    }
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "Categories given their parents" in page
    assert "sites agree: p = " in page
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as shown:
        print_summary(result, tmp_path / "run", console, seconds=1.0)
    assert "records of each combination of levels were" in " ".join(shown.get().split())


def set_to(n: int, column: int, level: int) -> np.ndarray:
    """(n, 5) codes as of `table`, where a, b or c is set."""
    rng = np.random.default_rng(99)
    a, b = (rng.random(n) < 0.3).astype(int), rng.integers(0, 3, n)
    a, b = np.full(n, level) if column == 0 else a, np.full(n, level) if column == 1 else b
    c = np.where(rng.random(n) < 0.8, (a + b) % 2 + 2 * (rng.random(n) < 0.5), rng.integers(0, 4, n))
    c = np.full(n, level) if column == 2 else c
    d = np.where(rng.random(n) < 0.85, c >= 2, rng.integers(0, 2, n))
    return np.column_stack([a, b, c, d])


def test_effects_are_those_of_setting_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([table(1500, seed) for seed in range(3)], tmp_path / "run", knowledge={"required": [["c", "d"]]})
    network = read_network(tmp_path / "run")
    for source, target in (("a", "c"), ("b", "c"), ("c", "d"), ("a", "d")):
        report = effect_of(network, [source], target)
        assert report["verdict"] == "identified"
        told = {(one["set"], one["level"]): one for one in report["probabilities"]}
        assert len(told) == LEVELS[source] * LEVELS[target]
        for level in range(LEVELS[source]):
            drawn = set_to(100_000, NAMES.index(source), level)[:, NAMES.index(target)]
            for k in range(LEVELS[target]):
                one = told[f"{source}{level}", f"{target}{k}"]
                low, high = one["interval"]
                assert low < one["probability"] < high
                assert abs(one["probability"] - np.mean(drawn == k)) < 1.6 * (high - low) / 2.0
        for row in report["effects"]:
            (value,) = row["values"]
            one, other = (
                row[end].partition("=")[2] or f"{name}1" for end, name in (("source", source), ("target", target))
            )
            difference = told[one, other]["probability"] - told[f"{source}0", other]["probability"]
            assert value["effect"] == pytest.approx(difference)
            assert value["interval"][0] < value["effect"] < value["interval"][1]
        assert any(text.startswith("by the tables of levels") for text in report["in_words"])
    outcome = run_command(capsys, "effect", tmp_path / "run", "--from", "c", "--to", "d")
    assert "probability of d, c set" in outcome.out
    back = effect_of(network, ["d"], "a")
    assert back["verdict"] == "no path"
    assert {one["interval"] for one in back["probabilities"]} == {None}
    share = np.mean(np.concatenate([table(1500, seed)[:, 0] for seed in range(3)]))
    assert [one["probability"] for one in back["probabilities"] if one["level"] == "a1"] == pytest.approx(
        [share] * 2, abs=1e-5
    )
    together = effect_of(network, ["a", "b"], "c")
    assert together["probabilities"] is None
    assert any("straight lines between levels" in text for text in together["in_words"])
    assert "tells them by the tables" in write_report(tmp_path / "run").read_text(encoding="utf-8")


def test_an_effect_that_rests_on_combinations_without_records_is_not_known(tmp_path: Path) -> None:
    """y follows from x and z; x is never 1 where z is 2."""
    tables: list[np.ndarray] = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        z = rng.integers(0, 3, 2000)
        x = np.where(z == 2, 0, rng.random(2000) < 0.3 + 0.4 * z).astype(int)
        y = rng.random(2000) < 0.2 + 0.3 * x + 0.2 * z
        tables.append(np.column_stack([z, x, y]).astype(float))
    knowledge = {"tiers": [["z"], ["x"], ["y"]]}
    run(tables, tmp_path / "run", levels={"z": 3, "x": 2, "y": 2}, knowledge=knowledge)
    report = effect_of(read_network(tmp_path / "run"), ["x"], "y")
    (row,) = report["effects"]
    assert (row["verdict"], row["values"]) == ("not known", [])
    assert any("combinations of levels that no record has" in text for text in report["in_words"])
    told = {(one["set"], one["level"]): one["probability"] for one in report["probabilities"]}
    assert told["x1", "y1"] is None
    assert told["x0", "y1"] == pytest.approx(0.2 + 0.2, abs=0.02)


def with_gaps(share: float) -> list[np.ndarray]:
    tables = [table(1500, seed) for seed in range(3)]
    for k, X in enumerate(tables):
        X[np.random.default_rng(k).random(X.shape) < share] = np.nan
    return tables


def test_rows_without_a_gap_are_counted_and_the_result_says_how_many(tmp_path: Path) -> None:
    tables = with_gaps(0.08)
    for row, v in enumerate((0, 1, 4)):  # no row of site-2 is complete, and each two variables are in some
        tables[1][row::3, v] = np.nan
    result = run(tables, tmp_path / "run", bootstrap=5)
    assert is_true(result)
    complete = sum(int((~np.isnan(X)).all(axis=1).sum()) for X in tables)
    assert all(sum(row["records"] for row in one["rows"]) == complete for one in result["categories"].values())
    assert f"counted, of the {complete:,} rows without a missing value" in " ".join(result["verdict"]["assumed"])
    assert result["verdict"]["withheld"] == []
    (said,) = (text for text in result["warnings"] if "had a missing value in each row" in text)
    assert said.startswith("site-2 had")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("differ", "differ from the others"), ("few", "too few"), ("columns", "some site lacks 'e'")],
)
def test_where_rows_without_a_gap_do_not_stand_for_all_the_graph_of_the_moments_stays(
    trouble: str, reason: str, tmp_path: Path
) -> None:
    tables = with_gaps(0.5 if trouble == "few" else 0.02)
    for X in tables:
        X[(trouble == "differ") & (X[:, 0] == 1.0) & (np.arange(len(X)) % 3 > 0), 4] = np.nan
    tables[0][:, 4] = np.nan if trouble == "columns" else tables[0][:, 4]
    by_moments = run(tables, tmp_path / "moments", counts_rounds=0)
    result = run(tables, tmp_path / "gaps")
    for key in ("edges", "fit", "categories", "estimation"):
        assert result[key] == by_moments[key], key
    (said,) = (text for text in result["verdict"]["assumed"] if "counted only among rows without a missing" in text)
    assert reason in said
    assert "nothing about how a category depends on its parents" not in " ".join(result["verdict"]["assumed"])
    said = [text for text in result["verdict"]["not_testable"] if "linear effects" in text]
    assert said == [text for text in by_moments["verdict"]["not_testable"] if "linear effects" in text]


def test_a_constant_a_level_that_occurs_nowhere_and_a_copy_end_in_a_result_with_names(tmp_path: Path) -> None:
    tables = [table(100, seed) for seed in range(8)]
    tables[3] = tables[3][tables[3][:, 1] != 2]  # a level that one site does not have
    levels = {"a": 2, "b": 3, "c": 6, "d": 2, "e": 3, "copy": 3, "constant": 30}
    wide = [np.column_stack([X, X[:, 1], np.full(len(X), 7.0)]) for X in tables]
    result = run(wide, tmp_path / "run", levels=levels, bootstrap=3)
    assert result["state"] == "finished"
    assert ["b", "copy"] in [sorted(names) for names in result["verdict"]["functions"]]
    assert any("constant" in one["variable"] for one in result["unused"])
    assert not any("constant" in (edge["source"], edge["target"]) for edge in result["edges"])
    assert result["validation"]["variables"]["c"]["common_means"]["rows"] == sum(map(len, tables))


def test_sites_with_other_shares_of_levels_are_said_where_no_main_effect_shows_them(tmp_path: Path) -> None:
    tables = [table(1000, seed) for seed in range(4)]
    alike = run(tables, tmp_path / "alike")
    tables[1][:, 0] = 1.0 - tables[1][:, 0]  # c is odd as a + b is: its shares in the levels of a alone hardly change

    other = run(tables, tmp_path / "other")

    assert not any("how often levels" in words for words in alike["verdict"]["contradicted"])
    assert any("same shares of levels" in words for words in alike["verdict"]["tested"])
    assert alike["categories"]["c"]["agreement"]["p"] > 0.01
    assert any("how often levels of 'c'" in words for words in other["verdict"]["contradicted"])


def test_an_edge_that_only_a_difference_between_sites_makes_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    tables = [
        np.column_stack([rng.random(1000) < share, rng.random(1000) < share]).astype(float) for share in (0.2, 0.5, 0.8)
    ]

    result = run(tables, tmp_path, levels={"a": 2, "b": 2})

    assert len(result["edges"]) == 1
    assert any("difference between sites" in words for words in result["verdict"]["contradicted"])


def test_rows_of_few_records_are_grey_on_the_page(tmp_path: Path) -> None:
    tables = [np.column_stack([np.repeat([0.0, 1.0], [n, 4]), np.repeat([0.0, 1.0], [n, 4])]) for n in (96, 40)]
    for few, more in (("few", 0), ("enough", 16)):
        wide = [np.vstack([X, np.ones((more, 2))]) for X in tables]
        result = run(wide, tmp_path / few, levels={"x": 2, "y": 2})
        (child,) = (one for one in result["categories"].values() if one["parents"])
        assert sorted(row["records"] for row in child["rows"]) == [2 * (4 + more), 136]
        page = write_report(tmp_path / few).read_text(encoding="utf-8")
        assert ('<tr class="few">' in page) == (2 * (4 + more) < FEW_RECORDS)


def test_knowledge_is_kept(tmp_path: Path) -> None:
    knowledge = {"required": [["e", "a"]], "forbidden": [["c", "d"], ["d", "c"]]}
    result = run([table(600, seed) for seed in range(2)], tmp_path / "run", knowledge=knowledge)
    edges = {(edge["source"], edge["target"]): edge for edge in result["edges"]}
    assert edges["e", "a"]["directed_by"] == "knowledge"
    assert not {("c", "d"), ("d", "c")} & edges.keys()


def test_beside_a_number_counts_are_not_used_and_the_run_says_so(tmp_path: Path) -> None:
    described = Dictionary.model_validate({**dictionary(LEVELS).model_dump(), "age": {"range": [0.0, 100.0]}})
    rng = np.random.default_rng(1)
    tables = [np.column_stack([table(200, seed), rng.normal(50, 10, 200)]) for seed in range(2)]
    found = []
    for rounds in (5, 0):
        plan = Plan.load("standard").with_dictionary(described, origin="here")
        plan = plan.with_settings(n_participants=2, bootstrap=3, counts_rounds=rounds)
        read = {
            f"site-{k}": Dataset.of_values(described.variables, X, origin="here", dictionary=described, warn=False)
            for k, X in enumerate(tables)
        }
        found.append(simulate(plan, read, tmp_path / str(rounds)))
    told, before = found
    assert "counts" not in kinds(told)
    assert told["edges"] == before["edges"], "bit for bit"
    assert told["categories"] is None
    assert any("'age' is no category" in text for text in told["verdict"]["assumed"])
    assert not any("category" in text for text in before["verdict"]["assumed"])


def test_required_parents_whose_table_is_too_large_are_refused_by_name() -> None:
    levels = {"x": 30, "y": 30, "z": 30}
    knowledge = {"required": [["x", "z"], ["y", "z"]]}
    plan = Plan.load("standard").with_dictionary(dictionary(levels), origin="here")
    with pytest.raises(PlanError, match="the table of 'x' and 'y' and 'z' has more than 5000 cells"):
        plan.with_settings(knowledge=knowledge)
    many = Plan.load("standard").with_dictionary(dictionary(dict.fromkeys("abcdefghi", 2)), origin="here")
    knowledge_of = [[[source, "i"] for source in "abcdefgh"[:k]] for k in (7, 8)]
    many.with_settings(knowledge={"required": knowledge_of[0]})
    with pytest.raises(PlanError, match="or 8 variables"):
        many.with_settings(knowledge={"required": knowledge_of[1]})
    plan.with_settings(knowledge=knowledge, counts_rounds=0)


def test_counts_are_refused_with_privacy() -> None:
    with pytest.raises(PlanError, match="counts_rounds = 5: must be 0 with"):
        Plan.load("private", ["counts_rounds=5"], epsilon=1.0)


def with_a_withholding_site(
    tables: list[np.ndarray], out: Path, least_cell: int, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> dict[str, Any]:
    """A run whose site-1 tells no count below `least_cell` in tables and regressions."""

    def participant(site: str, *rest: Any, **named: Any) -> Participant:
        return Participant(site, *rest, **named, least_cell=least_cell if site == "site-1" else 0)

    with monkeypatch.context() as patched:
        patched.setattr(simulate_module, "Participant", participant)
        return run(tables, out, **settings)


def test_where_a_site_withholds_tables_of_the_graph_that_of_the_moments_stays_and_the_head_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [table(600, seed) for seed in range(3)]
    by_moments = run(tables, tmp_path / "moments", counts_rounds=0, bootstrap=10)
    result = with_a_withholding_site(tables, tmp_path / "kept", 400, monkeypatch, bootstrap=10)
    for key in ("source", "target", "directed", "weight", "bootstrap"):
        assert [one[key] for one in result["edges"]] == [one[key] for one in by_moments["edges"]], key
    assert result["categories"] is None
    (said,) = result["verdict"]["withheld"]
    assert said.startswith("categories were not searched by counts: site-1 sends no counts below a limit of its own")
    assert said in result["warnings"]
    assert "sites withhold the counts" in " ".join(result["verdict"]["assumed"])
    assert not [text for text in result["warnings"] if "missed a round of counts" in text]
    assert "Categories were not searched by counts: site-1" in write_report(tmp_path / "kept").read_text(
        encoding="utf-8"
    )
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as shown:
        print_summary(result, tmp_path / "kept", console, seconds=1.0)
    assert "Categories were not searched by counts: site-1" in " ".join(shown.get().split())


def test_tables_that_are_withheld_beside_the_graph_are_said_and_never_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Families of the graph have large cells; larger sets of variables have small ones."""
    rng = np.random.default_rng(5)
    tables = []
    for _ in range(3):
        a, d = rng.integers(0, 2, (2, 1000))
        b = (a + (rng.random(1000) < 0.2)) % 2
        c = (b + (rng.random(1000) < 0.2)) % 2
        e = (d + (rng.random(1000) < 0.05)) % 2
        tables.append(np.column_stack([a, b, c, d, e]).astype(float))
    levels = dict.fromkeys("abcde", 2)
    whole = run(tables, tmp_path / "whole", levels=levels)
    result = with_a_withholding_site(tables, tmp_path / "kept", 20, monkeypatch, levels=levels)
    assert len(whole["edges"]) >= 3
    assert result["edges"] == whole["edges"]
    assert result["categories"] == whole["categories"]
    (said,) = result["verdict"]["withheld"]
    assert "edges that only these would show were not tried" in said
    assert not whole["verdict"]["withheld"]


def test_sums_of_a_regression_are_withheld_with_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [table(600, seed) for seed in range(3)]
    result = with_a_withholding_site(tables, tmp_path / "kept", 400, monkeypatch)
    assert result["regressions"]
    for one in result["regressions"]:
        assert one["rows"] == 1200
        assert any("rests on the 1,200 of 1,800 rows" in text for text in one["notes"])


class StoppedError(Exception):
    """The coordinator ends after a round."""


class FreshSites:
    """An Exchange whose sites begin anew in every round, with what the coordinator holds of them; some stay away."""

    def __init__(self, plan: Plan, tables: dict[str, Dataset], away: dict[int, str]) -> None:
        self.traffic = Traffic()
        self._plan, self._tables, self._away = plan, tables, away

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> dict[str, LocalUpdate]:
        found = {}
        for site, task in tasks.items():
            if self._away.get(task.round) != site:
                found[site] = Participant(site, self._tables[site], self._plan, snapshots[site]).handle(task)
                check(found[site])
        return found


def in_many_lives(plan: Plan, tables: dict[str, Dataset], path: Path, away: dict[int, str]) -> AdmmState:
    """A run whose coordinator ends after every round and goes on from its checkpoint."""

    def save(state: AdmmState, record: object) -> None:
        checkpoint.save(path, state, plan_digest=plan.digest())
        raise StoppedError

    rows, columns = {site: table.n_samples for site, table in tables.items()}, next(iter(tables.values())).variables
    state = None
    while True:
        try:
            return round_loop.run(
                plan, columns, rows, FreshSites(plan, tables, away), on_round=save, state=state
            )  # fmt: skip
        except StoppedError:
            state = checkpoint.load(path, plan_digest=plan.digest())


def test_a_run_that_is_taken_up_after_every_round_finds_the_same(tmp_path: Path) -> None:
    described, X = dictionary(LEVELS), [table(700, seed) for seed in range(2)]
    plan = Plan.load("standard").with_dictionary(described, origin="here").with_settings(n_participants=2, bootstrap=4)
    read = {
        f"site-{k}": Dataset.of_values(NAMES, one, origin="here", dictionary=described, warn=False)
        for k, one in enumerate(X, start=1)
    }
    last: list[AdmmState] = []
    simulate(plan, read, tmp_path / "run", follow=last.append)
    again = in_many_lives(plan, read, tmp_path / "checkpoint.npz", {})
    assert again.counted is not None
    assert last[-1].counted is not None
    assert again.refitted is not None
    assert last[-1].refitted is not None
    assert again.counted.sets == last[-1].counted.sets
    assert (again.counted.dag == last[-1].counted.dag).all()
    assert again.refitted.value.tolist() == last[-1].refitted.value.tolist()
    assert again.confidence is not None
    assert last[-1].confidence is not None
    assert again.confidence.counts.tolist() == last[-1].confidence.counts.tolist()


def test_a_site_that_misses_a_round_of_counts_is_in_no_table(tmp_path: Path) -> None:
    described, X = dictionary(LEVELS), [table(rows, seed) for seed, rows in enumerate((500, 600, 700))]
    plan = Plan.load("standard").with_dictionary(described, origin="here")
    plan = plan.with_settings(n_participants=3, quorum=2, bootstrap=2)
    read = {
        f"site-{k}": Dataset.of_values(NAMES, one, origin="here", dictionary=described, warn=False)
        for k, one in enumerate(X, start=1)
    }
    # Statistics, ADMM and moments come before: the first two rounds of counts are 14 and 15.
    for away in ({14: "site-2"}, {15: "site-2"}):
        state = in_many_lives(plan, read, tmp_path / "checkpoint.npz", away)
        told = categories_of(state, plan, next(iter(read.values())).variables)
        assert told is not None
        for name in NAMES:
            assert sum(row["records"] for row in told[name]["rows"]) == 1200


@pytest.mark.parametrize("gaps", [0.0, 0.02])
def test_a_site_cannot_count_fewer_records_than_it_has_without_a_gap(
    gaps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, X = dictionary(LEVELS), [table(700, seed) for seed in range(2)]
    for k, one in enumerate(X):
        one[np.random.default_rng(k).random(one.shape) < gaps] = np.nan
    whole = (~np.isnan(X[0])).all(axis=1).sum()
    plan = Plan.load("standard").with_dictionary(described, origin="here").with_settings(n_participants=2, bootstrap=0)
    tables = {
        f"site-{k}": Dataset.of_values(NAMES, one, origin="here", dictionary=described, warn=False)
        for k, one in enumerate(X, start=1)
    }
    rows, columns = dict.fromkeys(tables, 700), tables["site-1"].variables
    sites = FreshSites(plan, tables, {})
    monkeypatch.setattr(counts_at_site, "counted", lambda X, *of: counted(X[10:], *of))
    with pytest.raises(RemoteProtocolError, match=f"site-1: .* tables of {whole - 10} records; .* that {whole} rows"):
        round_loop.run(plan, columns, rows, sites, on_round=lambda state, record: None)


def test_a_site_cannot_count_more_records_than_its_own_rows() -> None:
    described, X = dictionary(LEVELS), [table(700, seed) for seed in range(2)]
    plan = Plan.load("standard").with_dictionary(described, origin="here").with_settings(n_participants=2, bootstrap=0)
    tables = {
        f"site-{k}": Dataset.of_values(NAMES, one, origin="here", dictionary=described, warn=False)
        for k, one in enumerate(X, start=1)
    }
    rows, columns = {"site-1": 700, "site-2": 600}, tables["site-1"].variables
    with pytest.raises(RemoteProtocolError, match=r"site-2: .* more records than the site has"):
        round_loop.run(plan, columns, rows, FreshSites(plan, tables, {}), on_round=lambda state, record: None)
