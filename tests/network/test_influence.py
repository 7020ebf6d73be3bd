"""One site that sends something wrong is named where people look first; honest sites are not."""

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.errors import MembershipRefusedError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.rounds import residual_moments
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.site_files import site_files
from fedbnsl_client.participant import Participant
from fedbnsl_research.bench.poison import ConstantWeights, Garbage, swapped
from fedbnsl_server.cli import _summarise  # pyright: ignore[reportPrivateUsage]
from fedbnsl_server.results.outlier_scores import many_rows
from fedbnsl_server.results.sentences import in_words
from fedbnsl_workbench import simulate as simulation
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.tables.folder import write_federation
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise
from forked import forked_run
from report_runs import Page

SPARSE = Plan(rounds=6)
LEAN = Plan(rounds=3, refit_rounds=0, moments_rounds=1, value_type="float32", send_tolerance=0.01)
PRIVATE = Plan().with_settings(
    rounds=0,
    refit_rounds=0,
    moments_rounds=2,
    local_solver="dp-pgcd",
    local_steps=1,
    privacy={"epsilon": 4.0, "feature_bounds": [100.0]},
)
PRIVATE_STEPS = Plan().with_settings(
    rounds=3,
    refit_rounds=0,
    local_solver="dp-pgcd",
    local_steps=10,
    privacy={"epsilon": 10.0, "feature_bounds": [100.0]},
)


class GarbageMoments(Participant):
    """Releases nothing but the bound, for every pair, in a private run."""

    def handle(self, task: RoundTask) -> LocalUpdate:
        update = super().handle(task)
        if isinstance(update.content, residual_moments.Answer):
            content = residual_moments.Answer(np.full(update.content.moments.size, 2.0), update.content.task_digest)
            return LocalUpdate(update.site, update.round, content, update.ledger)
        return update


def tables(federation: SyntheticFederation) -> dict[str, Dataset]:
    return {f"site-{k}": Dataset(federation.variables, X) for k, X in enumerate(federation.tables, start=1)}


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """A simulated run in which one site is of another class."""

    def playing(
        plan: Plan,
        wrong: type[Participant] | None = None,
        *,
        site: str = "site-2",
        n_sites: int = 3,
        rows: int = 800,
        seed: int = 5,
        variance: float = 0.0,
    ) -> dict[str, Any]:
        def participant(name: str, *given: Any, **more: Any) -> Participant:
            return (wrong if wrong and name == site else Participant)(name, *given, **more)

        monkeypatch.setattr(simulation, "Participant", participant)
        federation = synthesise(8, 10, n_sites, rows, seed, weight_variance=variance)
        plan = plan.with_settings(n_participants=n_sites)
        noise = 3 if plan.privacy else None
        out = tmp_path / f"{seed}-{plan.digest().hex()[:8]}-{wrong and wrong.__name__}-{variance}"
        return simulation.simulate(plan, tables(federation), out, noise_seed=noise)

    return playing


def named(result: dict[str, Any]) -> list[str]:
    return [warning.split()[0] for warning in result["warnings"] if "stands out" in warning]


ATTACKS = [
    (SPARSE, ConstantWeights),
    (SPARSE, Garbage),
    (SPARSE.with_settings(refit_rounds=0), ConstantWeights),
    (SPARSE.with_settings(local_solver="closed-form"), ConstantWeights),
    (LEAN, ConstantWeights),
    (LEAN, Garbage),
    (PRIVATE, GarbageMoments),
    (PRIVATE_STEPS, ConstantWeights),
]


@pytest.mark.parametrize(("plan", "wrong"), ATTACKS)
def test_a_site_that_sends_something_wrong_is_named_first_and_alone(
    plan: Plan, wrong: type[Participant], play: Callable[..., dict[str, Any]]
) -> None:
    result = play(plan, wrong)
    assert named(result) == ["site-2"]
    assert result["warnings"][0].startswith("site-2 stands out")
    assert "run again without this site" in result["warnings"][0]
    assert "if they are right, its practice or its patients differ" in result["warnings"][0]
    influence = result["influence"]
    assert set(influence["sites"]) == {"site-1", "site-2", "site-3"}
    above = {site for site, of in influence["sites"].items() if of["largest"] > influence["limit"]}
    assert above == {"site-2"}
    assert influence["sites"]["site-2"]["rounds_above_limit"] >= 1
    assert set(influence["sites"]["site-2"]["variables"]) <= set(result["variables"])


@pytest.mark.parametrize("plan", [SPARSE, LEAN, PRIVATE, PRIVATE_STEPS])
@pytest.mark.parametrize("n_sites", [3, 5])
def test_honest_sites_are_not_named(plan: Plan, n_sites: int, play: Callable[..., dict[str, Any]]) -> None:
    result = play(plan, n_sites=n_sites)
    assert named(result) == []
    assert len(result["influence"]["sites"]) == n_sites
    largest = [of["largest"] for of in result["influence"]["sites"].values()]
    assert 0 < max(largest) < 4


def test_two_sites_are_not_compared_and_the_page_says_so(play: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    result = play(SPARSE, ConstantWeights, n_sites=2)
    assert named(result) == []
    assert result["influence"]["sites"] == {}
    assert "of two, nothing tells which one is odd" in result["influence"]["unknown_because"]
    (run,) = tmp_path.iterdir()
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "Not known: no round had answers of 3 sites" in page.text


def test_two_columns_that_are_swapped_at_one_site_are_named_by_processes_and_by_one_process_alike(
    tmp_path: Path,
) -> None:
    drawn = synthesise(8, 10, 3, 800, 5)
    wrong = swapped(drawn.tables[2], drawn.W)
    mistaken = SyntheticFederation(drawn.variables, drawn.W, (*drawn.tables[:2], wrong), drawn.site_weights)
    write_federation(mistaken, tmp_path / "data")
    files = site_files(tmp_path / "data")
    forked_run(LEAN, files, tmp_path / "network", seeds={})
    alone = simulation.simulate(LEAN, {site: Dataset.read(path) for site, path in files.items()}, tmp_path / "alone")
    network = json.loads((tmp_path / "network" / "result.json").read_text(encoding="utf-8"))
    assert network["influence"] == alone["influence"]
    assert [entry["influence"] for entry in network["rounds"]] == [entry["influence"] for entry in alone["rounds"]]
    assert named(network) == ["site-3"]
    moved = {drawn.variables[k] for k in np.flatnonzero((wrong != drawn.tables[2]).any(axis=0))}
    assert len(moved) == 2
    assert moved & set(network["influence"]["sites"]["site-3"]["variables"])


def test_the_named_site_is_said_once_at_the_head_of_summary_and_page(
    play: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = play(LEAN, Garbage)
    (run,) = tmp_path.iterdir()
    printed = io.StringIO()
    print_summary(result, run, Console(file=printed, width=200), seconds=1.0)
    assert printed.getvalue().startswith("be careful: site-2 stands out")
    assert printed.getvalue().count("stands out") == 1
    _summarise(result, run)
    assert capsys.readouterr().out.startswith("be careful: site-2 stands out")
    html = write_report(run).read_text(encoding="utf-8")
    page = Page(html)
    head = html.partition("</header>")[0]
    assert "site-2 stands out" in head
    assert page.tables["influence"][1][0] == "site-2"
    assert [row[0] for row in page.tables["influence"][2:]] != []
    assert html.count("site-2 stands out") == 1


def test_a_page_of_an_older_run_without_influence_is_written_all_the_same(
    play: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    play(SPARSE)
    (run,) = tmp_path.iterdir()
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    del result["influence"]
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "influence" not in page.tables
    assert "Not known: an older run did not look." in page.text


def summaries(result: dict[str, Any], run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """As a simulation and as a coordinator print them."""
    printed = io.StringIO()
    print_summary(result, run, Console(file=printed, width=200), seconds=1.0)
    _summarise(result, run)
    return [printed.getvalue(), capsys.readouterr().out]


def test_a_summary_has_the_influence_of_every_site_the_largest_first(
    play: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = play(LEAN)
    (run,) = tmp_path.iterdir()
    sites = sorted(result["influence"]["sites"].items(), key=lambda one: -one[1]["largest"])
    line = ", ".join(f"{site} {of['largest']:.2g}" for site, of in sites) + " (above 6 is named)"
    assert len(sites) == 3
    for text in summaries(result, run, capsys):
        (found,) = (one for one in text.splitlines() if one.strip().startswith("outlier scores"))
        assert found.strip().endswith(line)


# ---- rows ----------------------------------------------------------------------------------------------------------


def test_a_site_with_far_more_rows_than_the_others_is_named() -> None:
    assert many_rows({"a": 100, "b": 200, "c": 1000}) == []
    assert many_rows({"a": 5000}) == []
    (sentence,) = in_words(many_rows({"a": 100, "b": 200, "c": 1501}))
    assert sentence.startswith("c says that it has 1501 rows, 10 times the median of the other sites")


def test_the_warning_about_rows_is_in_the_result(tmp_path: Path) -> None:
    drawn = synthesise(5, 5, 3, 1100, 1)
    cut = [drawn.tables[0], drawn.tables[1][:100], drawn.tables[2][:100]]
    data = {f"site-{k}": Dataset(drawn.variables, X) for k, X in enumerate(cut, start=1)}
    result = simulation.simulate(SPARSE, data, tmp_path / "run")
    assert any(warning.startswith("site-1 says that it has 1100 rows, 11 times") for warning in result["warnings"])
    assert named(result) == []


def test_a_simulation_refuses_the_row_counts_that_a_coordinator_would_refuse(tmp_path: Path) -> None:
    drawn = synthesise(5, 5, 3, 100, 1)
    with pytest.raises(MembershipRefusedError, match="100 rows; the plan allows 99 at most"):
        simulation.simulate(SPARSE.with_settings(max_rows=99), tables(drawn), tmp_path / "run")


# ---- a robust consensus --------------------------------------------------------------------------------------------


def edges(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(edge["source"], edge["target"]) for edge in result["edges"]}


@pytest.mark.parametrize(("plan", "wrong"), [(SPARSE.with_settings(rounds=30), ConstantWeights), (LEAN, Garbage)])
@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_a_robust_rule_keeps_the_graph_that_a_mean_loses(
    plan: Plan, wrong: type[Participant], rule: str, play: Callable[..., dict[str, Any]]
) -> None:
    honest = edges(play(plan, seed=6))
    assert len(edges(play(plan, wrong, seed=6)) ^ honest) > 5
    robust = functools.partial(play, plan.with_settings(consensus=rule), seed=6)
    assert len(edges(robust()) ^ honest) <= 2
    attacked = robust(wrong)
    assert len(edges(attacked) ^ honest) <= 2
    assert named(attacked) == ["site-2"]


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_sites_that_a_rule_leaves_out_whole_are_named_in_result_summary_and_page(
    rule: str, play: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = play(LEAN.with_settings(consensus=rule), Garbage)
    (run,) = tmp_path.iterdir()
    *steps, search = result["rounds"]
    assert search["left_out"] == ["site-2"]
    assert not any("left_out" in entry for entry in steps)
    words = "site-2: left out of the search of round 4"
    for text in [*summaries(result, run, capsys), Page(write_report(run).read_text(encoding="utf-8")).text]:
        assert words in text
    mean = play(LEAN, Garbage)
    assert not any("left_out" in entry for entry in mean["rounds"])


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_a_private_run_takes_a_robust_rule(rule: str, play: Callable[..., dict[str, Any]]) -> None:
    plan = PRIVATE.with_settings(consensus=rule, privacy={"epsilon": 100.0, "feature_bounds": [100.0]})
    honest = edges(play(plan))
    assert len(honest) > 3
    assert len(edges(play(plan, GarbageMoments)) ^ honest) <= 4
