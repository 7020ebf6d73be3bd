"""`coordinator forget` after a run of three processes: the site's name and numbers are gone, and the result says so."""

import fcntl
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from command_line import Outcome, refused
from fedbnsl.errors import IdentityError, ResultError
from fedbnsl.events.security_log import NAME, lines
from fedbnsl.plan.plan import Plan
from fedbnsl_client.site.identity import Identity
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.store import forget as forgetting
from fedbnsl_server.store.result_file import read_result
from fedbnsl_workbench.report.card import write_card
from fedbnsl_workbench.report.history import settings
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.run_files import read_run
from fedbnsl_workbench.tables.synthetic import synthesise
from federation_folder import enrol, make_federation
from private_site import write_table

GONE = "site-2"
OWN_LOGS = {"logs/site-2.log", "logs/coordinator.log"}  # of the demo, not of a coordinator


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, with one of three sites that told of their tables and scored the network."""
    folder = tmp_path_factory.mktemp("played")
    drawn = synthesise(4, 4, 3, 300, 7)
    for k, X in enumerate(drawn.tables, 1):
        write_table(folder / "data" / f"site-{k}.csv", X, drawn.variables)
    out = folder / "runs" / "run"
    command = [sys.executable, "-m", "fedbnsl", "demo", "--plan=standard", f"--data={folder / 'data'}", f"--out={out}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    shutil.rmtree(out / "sites")  # what the sites of a demo keep; a coordinator has none of it
    return folder / "runs"


@pytest.fixture
def runs(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "runs"))


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "federation")


def own_numbers(told: Any, *, within: bool = False) -> set[str]:
    """The numbers with a fraction that are told of the site alone."""
    if isinstance(told, dict):
        within = within or told.get("site") == GONE
        return {x for key, one in told.items() for x in own_numbers(one, within=within or key == GONE)}
    if isinstance(told, list):
        return {x for one in told for x in own_numbers(one, within=within)}
    return {repr(told)} if within and isinstance(told, float) else set()


def others_numbers(told: Any) -> set[str]:
    if isinstance(told, dict):
        apart = told.get("site") == GONE
        return {x for key, one in told.items() if key != GONE and not apart for x in others_numbers(one)}
    if isinstance(told, list):
        return {x for one in told for x in others_numbers(one)}
    return {repr(told)} if isinstance(told, float) else set()


def files_with(folder: Path, pattern: str) -> set[str]:
    texts = {file: file.read_bytes().decode("latin-1") for file in folder.rglob("*") if file.is_file()}
    return {str(file.relative_to(folder)) for file, text in texts.items() if re.search(pattern, text)}


def test_name_and_numbers_go_and_the_result_says_that_it_rests_on_the_site(
    fedbnsl: Callable[..., Outcome], runs: Path, federation: Federation, tmp_path: Path
) -> None:
    site: Identity = enrol(federation, tmp_path / "site", GONE)
    run = runs / "run"
    before = json.loads((run / "result.json").read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    alone = own_numbers([before, *events]) - others_numbers([before, *events])
    assert len(alone) > 20

    about = ("coordinator", "forget", federation.folder, GONE, runs)
    shown = json.loads(fedbnsl(*about, "--dry-run", "--json").out)
    assert files_with(run, GONE) >= {"result.json", "events.jsonl", "checkpoint.npz"}, "a dry run changes nothing"
    done = json.loads(fedbnsl(*about, "--yes", "--json").out)
    assert done == {**shown, "forgotten": True}

    assert files_with(run, GONE) == {"security-log.jsonl", *OWN_LOGS}
    assert {str(Path(file).relative_to(run)) for file in done["folders"][0]["stays"]} == files_with(run, GONE)
    assert not [*run.rglob("*.npz")]
    for x in alone:
        assert not files_with(run, rf"(?<![\d.]){re.escape(x)}(?!\d)"), x
    after = read_result(run)
    assert [one["weight"] for one in after["edges"]] == [one["weight"] for one in before["edges"]]
    assert sorted(after["sites"]) == ["forgotten-1", "site-1", "site-3"]
    assert after["sites"]["forgotten-1"]["n_samples"] == 300
    assert after["warning_codes"][-1] == "site_forgotten"
    assert "still rest on its rows" in write_report(run).read_text(encoding="utf-8")
    with pytest.raises(IdentityError, match="not enrolled"):
        federation.identify(site.certificate.public_bytes(Encoding.PEM))
    *_, last = lines(federation.folder / NAME)
    assert (last.entry["event"], last.entry["site"], last.entry["runs"]) == ("site forgotten", GONE, "run")
    refused(fedbnsl(*about[:3], "nobody", runs, "--yes"), 2, "is of a site 'nobody'")


def test_nothing_is_changed_while_a_run_may_go_on(
    fedbnsl: Callable[..., Outcome], runs: Path, federation: Federation
) -> None:
    going_on = Path(shutil.copytree(runs / "run", runs / "going-on"))
    (going_on / "result.json").unlink()
    about = ("coordinator", "forget", federation.folder, GONE, runs)
    refused(fedbnsl(*about, "--yes"), 2, "cannot be forgotten yet", "going-on: it may go on", "Nothing was changed")
    assert "result.json" in files_with(runs / "run", GONE)
    shutil.rmtree(going_on)
    with (runs / "run" / "run.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(fedbnsl(*about, "--yes"), 2, "a coordinator works on it")
    assert fedbnsl(*about).code != 0, "nobody answers"
    assert "result.json" in files_with(runs / "run", GONE)


def test_what_was_broken_off_is_finished_by_a_second_call(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs / "run"

    def full(*_: object, **__: object) -> None:
        raise ResultError("no space")

    found = forgetting.held([runs], GONE)
    with monkeypatch.context() as patch:
        patch.setattr(forgetting.durable, "write_text", full)
        with pytest.raises(ResultError, match="no space"):
            forgetting.forget(found, GONE)
    assert not [*run.rglob("*.npz")]
    forgetting.forget(forgetting.held([runs], GONE), GONE)
    assert files_with(run, GONE) == {"security-log.jsonl", *OWN_LOGS}


def test_another_site_with_a_longer_name_is_another_one(runs: Path) -> None:
    (only_keys,) = forgetting.held([runs], "site")
    assert not only_keys.removed + only_keys.changed
    assert not forgetting.held([runs], "ite-1")
    for name in ("result.json", "events.jsonl"):
        file = runs / "run" / name
        file.write_text(file.read_text(encoding="utf-8").replace("site-3", f"{GONE}0"), encoding="utf-8")
    forgetting.forget(forgetting.held([runs / "run"], GONE), GONE)
    assert sorted(read_result(runs / "run")["sites"]) == ["forgotten-1", "site-1", f"{GONE}0"]


def test_two_sites_are_told_apart_after_both_are_forgotten(runs: Path) -> None:
    for site in (GONE, "site-1"):
        forgetting.forget(forgetting.held([runs], site), site)
    assert sorted(read_result(runs / "run")["sites"]) == ["forgotten-1", "forgotten-2", "site-3"]


def renamed(runs: Path, **names: str) -> None:
    """Give sites of the run, and some words, other names; `site_2` is site-2."""
    for file in (runs / "run" / "result.json", runs / "run" / "events.jsonl"):
        text = file.read_text(encoding="utf-8")
        for old, new in names.items():
            text = text.replace(old.replace("_", "-"), new)
        file.write_text(text, encoding="utf-8")


def test_a_name_beyond_ascii_is_found(runs: Path) -> None:
    renamed(runs, site_2="Zürich")
    forgetting.forget(forgetting.held([runs], "Zürich"), "Zürich")
    assert sorted(read_result(runs / "run")["sites"]) == ["forgotten-1", "site-1", "site-3"]
    assert not [*(runs / "run").rglob("*.npz")]
    assert "Zürich" not in (runs / "run" / "events.jsonl").read_text(encoding="utf-8")


def test_variables_that_are_called_as_sites_stay(runs: Path) -> None:
    renamed(runs, site_1="X1", site_2="X2", site_3="X3")
    before = read_result(runs / "run")
    forgetting.forget(forgetting.held([runs], "X2"), "X2")
    after = read_result(runs / "run")
    for what in ("variables", "columns", "fit", "taken", "hidden_causes", "paths", "preparation"):
        assert after[what] == before[what], what
    assert [(one["source"], one["target"]) for one in after["edges"]] == [
        (one["source"], one["target"]) for one in before["edges"]
    ]
    assert sorted(after["sites"]) == ["X1", "X3", "forgotten-1"]
    assert after["validation"]["variables"].keys() == before["validation"]["variables"].keys()
    for one in (*after["rounds"], *after["edges"]):
        assert "X2" not in (one.get("contributed", ()), one.get("bytes", {}), one.get("influence", {}))
        assert "X2" not in ((one.get("sites") or {}).get("estimates", {}))


def test_a_result_that_cannot_do_without_a_name_is_refused_before_anything_goes(
    fedbnsl: Callable[..., Outcome], runs: Path, federation: Federation
) -> None:
    (runs / "run" / "result.json").write_text(
        (runs / "run" / "result.json").read_text(encoding="utf-8").replace(GONE, "finished"), encoding="utf-8"
    )
    shutil.copytree(runs / "run", runs / "a-run")
    refused(
        fedbnsl("coordinator", "forget", federation.folder, "finished", runs, "--yes"), 2, "remove the run", "Nothing"
    )
    assert (runs / "run" / "checkpoint.npz").exists()


def test_runs_below_runs_are_found_once_and_links_are_followed(runs: Path, tmp_path: Path) -> None:
    below = Path(shutil.copytree(runs / "run", runs / "study" / "first"))
    moved = tmp_path / "elsewhere.npz"
    (below / "checkpoint.npz").rename(moved)
    (below / "checkpoint.npz").symlink_to(moved)
    (runs / "linked").symlink_to(below)
    found = forgetting.held([runs, runs / "run", runs], GONE)
    assert len(found) == 2
    forgetting.forget(found, GONE)
    assert not moved.exists()
    for run in (runs / "run", below):
        assert read_result(run)["warning_codes"].count("site_forgotten") == 1


def test_both_files_have_the_same_other_name_after_a_call_that_ended_between_them(runs: Path) -> None:
    run, found = runs / "run", forgetting.held([runs], GONE)
    result = (run / "result.json").read_text(encoding="utf-8")
    forgetting.forget(found, GONE)
    (run / "result.json").write_text(result, encoding="utf-8")
    forgetting.forget(forgetting.held([runs], GONE), GONE)
    assert "forgotten-1" in read_result(run)["sites"]
    assert not files_with(run, "forgotten-2")


def test_a_run_that_a_site_only_visited_before_its_start_keeps_its_checkpoints(runs: Path) -> None:
    events = runs / "run" / "events.jsonl"
    text = events.read_text(encoding="utf-8")
    visit = text.partition("\n")[0].replace(json.loads(text.partition("\n")[0])["site"], "visitor")
    events.write_text(f"{visit}\n{text}", encoding="utf-8")
    before = read_result(runs / "run")
    forgetting.forget(forgetting.held([runs], "visitor"), "visitor")
    assert events.read_text(encoding="utf-8") == text
    assert read_result(runs / "run") == before
    assert (runs / "run" / "checkpoint.npz").exists()


@pytest.mark.parametrize("others", [(), ("site-1",)])
def test_a_report_and_a_card_do_not_take_the_name_from_the_plan(runs: Path, others: tuple[str, ...]) -> None:
    """The plan stays as it was approved, and names its sites; two that are forgotten cannot be told apart."""
    run = runs / "run"
    named = [
        'sites=["site-1", "site-2", "site-3"]',
        'absent={"site-2"=["X1"]}',
        'interventions=[{site="site-2", variables=["X4"]}]',
    ]
    plan = Plan.load(run / "plan.toml", named)
    (run / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
    for site in (GONE, *others):
        forgetting.forget(forgetting.held([runs], site), site)
    assert GONE in (run / "plan.toml").read_text(encoding="utf-8")
    report, card = write_report(run).read_text(encoding="utf-8"), write_card(run, run / "card.html", name_sites=True)
    for text in (report, card.read_text(encoding="utf-8")):
        assert GONE not in text
        assert "site-3" in text
    shown = {row["name"]: row["value"] for row in settings(read_run(run))}
    assert shown["sites"] == json.dumps(["site-3"] if others else ["site-1", "forgotten-1", "site-3"])
    assert ("absent.forgotten-1" in shown) == (not others)


def test_a_run_without_the_site_is_not_gone_on_with(fedbnsl: Callable[..., Outcome], runs: Path) -> None:
    forgetting.forget(forgetting.held([runs], GONE), GONE)
    serve = fedbnsl("coordinator", "serve", runs / "run", "--insecure", "--listen", "127.0.0.1:0")
    refused(serve, 9, "a site was forgotten", "begin a new run")
    assert "backup" not in serve.err


def test_what_stays_of_an_ejected_site_of_a_run_that_failed(runs: Path) -> None:
    run = runs / "run"
    told = json.loads((run / "result.json").read_text(encoding="utf-8"))
    loss = {"epsilon": 1.0, "delta": 1e-6, "price_zcdp": 0.1, "contributed_zcdp": 0.1}
    told["privacy"] = {"guarantee": "", "no_guarantee_because": [], "sites": dict.fromkeys(told["sites"], loss)}
    out = {"site": GONE, "after_round": 0, "from_round": 1, "time": "2026-01-01T00:00:00+00:00"}
    told |= {"state": "failed", "ejected": [{**told["sites"].pop(GONE), **out, "rounds_contributed": 0}]}
    (run / "result.json").write_text(json.dumps(told), encoding="utf-8")
    left = [run / name for name in ("eject-order.json", "eject-answer.json", "checkpoint.npz.part")]
    for file in left:
        file.write_text(json.dumps({"site": GONE}), encoding="utf-8")
    (found,) = forgetting.held([runs], GONE)
    assert not found.rests
    forgetting.forget([found], GONE)
    assert not any(file.exists() for file in left)
    after = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert [one["site"] for one in after["ejected"]] == ["forgotten-1"]
    assert after["privacy"]["sites"].keys() == {"forgotten-1", "site-1", "site-3"}
    for t, one in enumerate(told["rounds"]):
        assert after["rounds"][t]["bytes"]["forgotten-1"] == one["bytes"][GONE]


def test_events_stay_what_they_are_for_a_site_that_is_called_as_one(runs: Path) -> None:
    renamed(runs, site_2="round")
    forgetting.forget(forgetting.held([runs], "round"), "round")
    kinds = {one["event"] for one in map(json.loads, (runs / "run" / "events.jsonl").read_text("utf-8").splitlines())}
    assert kinds >= {"seated", "started", "round", "finished"}
