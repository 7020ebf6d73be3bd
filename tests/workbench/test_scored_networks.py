"""Scores of a run's network at the sites, against the rows of all of them; how they are shown, and how to get them."""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import r2_score, roc_auc_score

from fedbnsl.cli import fedbnsl as root
from fedbnsl.errors import DataError, ResultError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.results.network_of_run import fitted_network
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.simulate import simulate

ENTRIES = {"dose": {"range": [0, 40]}, "crp": {"range": [-50, 90]}, "dead": {"kind": "binary", "levels": ["no", "yes"]}}
DESCRIBED = Dictionary.model_validate(ENTRIES)
PLAN = Plan.load("standard", ["bootstrap=0", "look_for_curves=false", "look_at_noise=false"]).with_settings(
    n_participants=3, dictionary=ENTRIES, knowledge={"tiers": [["dose"], ["crp"], ["dead"]]}
)


def tables() -> dict[str, Dataset]:
    """Dose -> crp -> dead; crp lies higher at each further site."""
    rng, found = np.random.default_rng(1), dict[str, Dataset]()
    for k in range(3):
        n = 1500 + 500 * k
        dose = rng.normal(20.0, 4.0, n)
        crp = dose + 6.0 * k + rng.normal(0.0, 3.0, n)
        dead = rng.random(n) < 1.0 / (1.0 + np.exp(3.0 - 0.25 * (crp - 20.0)))
        found[f"site-{k}"] = Dataset(tuple(ENTRIES), np.column_stack([dose, crp, dead]), dictionary=DESCRIBED)
    return found


TABLES = tables()
ROWS = np.vstack([one.X for one in TABLES.values()])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scored") / "run"
    simulate(PLAN, TABLES, out)
    return out


def told(*arguments: object) -> str:
    ended = CliRunner(catch_exceptions=False).invoke(root, ["network", *map(str, arguments)])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_scores_of_all_sites_are_those_of_their_rows_taken_together(run: Path) -> None:
    scores = json.loads((run / "result.json").read_text(encoding="utf-8"))["validation"]["variables"]
    families = fitted_network(run).network.families
    crp, dead = scores["crp"], scores["dead"]
    assert crp["common_means"]["rows"] == crp["own_means"]["rows"] == len(ROWS)
    assert crp["common_means"]["r2"] == pytest.approx(r2_score(ROWS[:, 1], families["crp"].mean(ROWS)[:, 0]), abs=1e-9)
    exact = roc_auc_score(ROWS[:, 2], families["dead"].mean(ROWS)[:, 0])
    assert abs(dead["common_means"]["auc"] - exact) < 0.001
    likely = families["dead"].log_density(ROWS).mean()
    assert dead["common_means"]["log_likelihood"] == pytest.approx(likely, rel=1e-12)
    # The variance of dose is 16, that of the noise 9.
    assert crp["own_means"]["r2"] == pytest.approx(16 / 25, abs=0.03)
    assert crp["common_means"]["r2"] < 0.5 < crp["left_out"]["r2"]
    assert crp["left_out"]["r2"] == pytest.approx(crp["own_means"]["r2"], abs=0.01)
    assert list(crp["sites"]) == list(crp["left_out"]["sites"]) == list(TABLES)
    assert dead["left_out"] is scores["dose"]["left_out"] is None
    for site, table in TABLES.items():
        of_site = crp["sites"][site]["common_means"]["r2"]
        assert of_site == pytest.approx(r2_score(table.X[:, 1], families["crp"].mean(table.X)[:, 0]), abs=1e-9)


def test_the_network_that_was_sent_is_that_of_the_run(run: Path) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    (sent,) = (one for one in events if one["event"] == "network")
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert sent["sha256"] == result["validation"]["network"]
    text = fitted_network(run).to_json()
    assert sha256(text.encode()).hexdigest() == sent["sha256"]


def test_the_terminal_and_the_page_show_them(run: Path) -> None:
    shown = told("validate", run)
    assert "R^2 0.6" in shown
    assert "AUC" in shown
    assert "left out: R^2" in shown
    assert "learned from these rows" in shown
    page = write_report(run).read_text(encoding="utf-8")
    assert "How well the network describes the rows" in page
    assert page.count('id="scores-of-variables"') == 1
    for site in TABLES:
        assert f"<summary>At {site}</summary>" in page
    assert "Predicted, and what came true, of dose, crp, dead" in page


def test_rows_of_a_table_are_scored_without_a_run_of_their_own(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    cells = ["no", "yes"]
    lines = [f"{dose},{crp},{cells[int(dead)]}" for dose, crp, dead in TABLES["site-2"].X.tolist()]
    table.write_text("\n".join(["dose,crp,dead", "20,,no", "20,21,maybe", *lines]) + "\n", encoding="utf-8")
    found = json.loads(told("validate", run, table, "--json"))
    assert found["unread"] == {"dead": 1}
    of_run = json.loads((run / "result.json").read_text(encoding="utf-8"))["validation"]["variables"]
    crp = found["variables"]["crp"]["own_means"]
    assert crp["rows"] == len(TABLES["site-2"].X) + 1
    assert crp["r2"] == pytest.approx(of_run["crp"]["sites"]["site-2"]["own_means"]["r2"], abs=0.002)
    dead = found["variables"]["dead"]["common_means"]
    assert (dead["rows"], dead["left_out"]) == (len(TABLES["site-2"].X), 1)
    assert "1 cells of dead are no value" in told("validate", run, table)
    shown = told("validate", run, table)
    assert "learned from these rows" not in shown
    assert "left out" not in shown  # of a table, no site is
    assert "the means of the table's own rows" in shown
    table.write_text("dose\n20\n", encoding="utf-8")
    alone = json.loads(told("validate", run, table, "--json"))["variables"]
    assert alone["dose"]["own_means"]["rows"] == 1
    table.write_text("crp\n20\n", encoding="utf-8")
    with pytest.raises(Exception, match="no row of the table has a variable of the network and all of its parents"):
        told("validate", run, table)
    table.write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="is empty"):
        told("validate", run, table)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"validation": "none"}, "did not score its network: its plan has validation = 'none'"),
        ({"validation": "at_site"}, "on their own: nothing of it was sent"),
        ({"tell_means": False}, "the run has no scores"),
    ],
)
def test_a_run_without_scores_says_how_to_get_them(settings: dict[str, object], says: str, tmp_path: Path) -> None:
    result = simulate(PLAN.with_settings(**settings), TABLES, tmp_path / "run")
    assert result["validation"] is None
    with pytest.raises(ResultError, match=says) as caught:
        told("validate", tmp_path / "run")
    assert caught.value.remedy
    write_report(tmp_path / "run")


def test_a_network_that_cannot_be_made_costs_a_run_its_scores_and_not_its_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr("fedbnsl_server.results.network_of_run.network_of", broken)
    result = simulate(PLAN, TABLES, tmp_path / "run")
    assert (result["state"], result["validation"]) == ("finished", None)
    assert (
        '"reason": "ValueError: no such thing", "event": "no network"'
        in (tmp_path / "run" / "events.jsonl").read_text()
    )


def test_a_file_that_has_no_scores_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "validation.json"
    for text in (
        "{",
        "{}",
        '{"schema": "fedbnsl.validation/1", "variables": {"x": {}}}',
        (run / "edges.csv").read_text(),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ResultError, match="cannot be read as scores"):
            told("validate", path)
