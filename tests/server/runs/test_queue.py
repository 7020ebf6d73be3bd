import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from command_line import Outcome
from fedbnsl.errors import ResultError, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import JoinRequest
from fedbnsl_server.runs import queue
from fedbnsl_server.sites import membership_log
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_server.store.run_id import RunIdentity


def unread(place: Path, error: ResultError) -> None:
    pytest.fail(f"{place}: {error}")


PLAN = Plan(n_participants=2, variables=("a", "b", "c"), sites=("north", "south"), name="cohort")


def test_a_run_is_queued_with_its_plan_and_keeps_its_number_when_it_begins(tmp_path: Path) -> None:
    run = queue.add(tmp_path, PLAN, "first")
    assert (run.state(), run.wanted, run.plan()) == ("queued", "run", PLAN)
    folder = RunFolder.open(run.folder, run.plan(), RunIdentity(run.run, run.since))
    try:
        assert folder.identity.run == run.run
        assert queue.read(run.folder).state() == "running"
    finally:
        folder.close()
    assert queue.read(run.folder).state() == queue.read(run.folder).shown() == "interrupted"
    assert [queue.want(run, wanted).shown() for wanted in ("pause", "stop")] == ["paused", "stopped"]


def test_a_run_waits_until_the_last_of_its_sites_has_joined(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> None:
    run = queue.add(tmp_path, PLAN, "first")
    folder = RunFolder.open(run.folder, PLAN, RunIdentity(run.run, run.since))
    roster = Roster(PLAN, on_change=partial(membership_log.note, folder.events))

    def told() -> tuple[str, list[str]]:
        one = json.loads(fedbnsl("coordinator", "runs", "show", tmp_path, "first", "--json").out)
        return one["state"], one["awaited"]

    try:
        assert told() == ("waiting", ["north", "south"])
        roster.join(JoinRequest("south", PLAN.variables, 30))
        assert told() == ("waiting", ["north"])
        assert "first  waiting" in (listed := fedbnsl("coordinator", "runs", "list", tmp_path).out)
        assert listed.endswith("cohort  (for north)\n")
        stopped = fedbnsl("coordinator", "runs", "stop", tmp_path, "first", "--wait=0")
        assert (stopped.code, "still goes on" in stopped.err) == (6, True)
        assert "(for north; wanted: stop)" in fedbnsl("coordinator", "runs", "list", tmp_path).out
        assert fedbnsl("coordinator", "runs", "resume", tmp_path, "first").out == "first: waiting\n"
        waited = fedbnsl("coordinator", "runs", "wait", tmp_path, "first", "--timeout=0")
        assert "not over after 0 s: waiting for north" in waited.err
        roster.join(JoinRequest("north", PLAN.variables, 30))
        assert told() == ("running", [])
    finally:
        folder.close()
    assert told() == ("interrupted", [])


def test_runs_are_begun_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        queue.add(tmp_path, PLAN, name)
    assert [run.name for run in queue.all_runs(tmp_path, skip=unread)] == ["c", "a", "b"]
    queue.want(queue.named(tmp_path, "c"), "run")
    assert [run.name for run in queue.all_runs(tmp_path, skip=unread)] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["../up", "a b", ".hidden", "x" * 101, "a/b"])
def test_a_name_that_is_no_plain_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SetupError, match="cannot be the name of a run"):
        queue.add(tmp_path / "runs", PLAN, name)
    assert not (tmp_path / "runs").exists()


def test_a_run_is_never_queued_over_another(tmp_path: Path) -> None:
    first = queue.add(tmp_path, PLAN, "first")
    with pytest.raises(SetupError, match="is there already"):
        queue.add(tmp_path, PLAN, "first")
    assert queue.named(tmp_path, "first") == first


def test_a_run_that_a_coordinator_works_on_is_not_removed(tmp_path: Path) -> None:
    run = queue.add(tmp_path, PLAN, "first")
    folder = RunFolder.open(run.folder, PLAN, RunIdentity(run.run, run.since))
    with pytest.raises(ResultError, match="a coordinator works on") as refused:
        queue.remove(run)
    assert f"runs stop {tmp_path} first" in refused.value.remedy
    folder.close()
    queue.remove(run)
    assert not run.folder.exists()


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": "fedbnsl.queue/1", "wanted": "dance", "run": "1", "since": "x"}']
)
def test_9_a_damaged_wish_names_its_file(tmp_path: Path, text: str) -> None:
    run = queue.add(tmp_path, PLAN, "first")
    (run.folder / "queue.json").write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=r"first/queue\.json cannot be read"):
        queue.read(run.folder)


def test_what_changes_is_seen_without_reading_it(tmp_path: Path) -> None:
    run = queue.add(tmp_path, PLAN, "first")
    before = queue.stamp(tmp_path)
    assert queue.stamp(tmp_path) == before
    queue.want(run, "pause")
    assert queue.stamp(tmp_path) != before


@pytest.mark.parametrize("folder", ["runs", "."])
def test_the_commands_say_what_there_is_and_what_to_do(
    tmp_path: Path, folder: str, fedbnsl: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "queue one: fedbnsl coordinator runs start" in fedbnsl("coordinator", "runs", "list", folder).out
    (tmp_path / "cohort.toml").write_text(PLAN.to_toml(), encoding="utf-8")
    queued = fedbnsl("coordinator", "runs", "start", folder, "cohort.toml", "--name=first")
    assert queued.out == f"queued: first (plan digest {PLAN.digest().hex()})\n"
    assert fedbnsl("coordinator", "runs", "list", folder).out.startswith("first  queued")
    shown = fedbnsl("coordinator", "runs", "show", folder, "first").out
    assert "north, south" in shown
    assert fedbnsl("coordinator", "runs", "list", folder, "--site=north").out.startswith("first  queued")
    assert fedbnsl("coordinator", "runs", "list", folder, "--site=nor").out == "no runs of nor\n"
    for command, state in (("pause", "paused"), ("stop", "stopped")):
        for _ in range(2):  # as well as once
            said = fedbnsl("coordinator", "runs", command, folder, "first").out
            assert said == f"first: {state}; go on with: fedbnsl coordinator runs resume {folder} first\n"
        assert fedbnsl("coordinator", "runs", "list", folder).out.startswith(f"first  {state} ")
        assert json.loads(fedbnsl("coordinator", "runs", "show", folder, "first", "--json").out)["state"] == state
    assert fedbnsl("coordinator", "runs", "resume", folder, "first").out == "first: queued\n"
    again = fedbnsl("coordinator", "runs", "start", folder, "cohort.toml", "--name=first")
    assert again.out == queued.out, "the same plan under the same name is queued once"
    other = fedbnsl("coordinator", "runs", "start", folder, "cohort.toml", "--name=first", "--set=rounds=7")
    assert (other.code, "a run of another plan" in other.err) == (2, True)
    missing = fedbnsl("coordinator", "runs", "pause", folder, "second")
    assert (missing.code, "has no run 'second'; its runs: first" in missing.err) == (2, True)
    assert fedbnsl("coordinator", "runs", "remove", folder).code == 2
    assert "removed 1" in fedbnsl("coordinator", "runs", "remove", folder, "first", "--yes").out


def test_2_a_plan_that_no_site_could_join_is_not_queued(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> None:
    outcome = fedbnsl("coordinator", "runs", "start", tmp_path / "runs", "lean")
    assert outcome.code == 2
    assert "the plan does not name its variables" in outcome.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("plan", [[], ["lean"]])
def test_2_the_old_name_of_serving_a_folder_of_runs_tells_the_new_one(
    tmp_path: Path, plan: list[str], fedbnsl: Callable[..., Outcome]
) -> None:
    outcome = fedbnsl("coordinator", "serve", *plan, "--runs", tmp_path, "--insecure")
    assert outcome.code == 2
    assert f"fedbnsl coordinator runs serve {tmp_path}" in outcome.err


def test_a_path_is_that_of_a_run_in_this_folder_or_of_none(tmp_path: Path) -> None:
    queue.add(tmp_path / "runs", PLAN, "first")
    queue.add(tmp_path / "archive", PLAN, "first")
    assert queue.named(tmp_path / "runs", str(tmp_path / "runs" / "first")).folder.parent.name == "runs"
    with pytest.raises(SetupError, match="has no run"):
        queue.named(tmp_path / "runs", str(tmp_path / "archive" / "first"))


def test_a_run_that_cannot_be_read_stops_no_other(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> None:
    for name in ("bad", "good"):
        queue.add(tmp_path, PLAN, name)
    (tmp_path / "bad" / "queue.json").write_text("", encoding="utf-8")
    listed = fedbnsl("coordinator", "runs", "list", tmp_path)
    assert (listed.code, listed.out.split()[0]) == (0, "good")
    assert "bad/queue.json cannot be read" in listed.err


def test_runs_of_a_study_are_listed_together(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> None:
    (tmp_path / "cohort.toml").write_text(PLAN.to_toml(), encoding="utf-8")
    runs = tmp_path / "runs"
    for name, study in (("a", "heart"), ("b", ""), ("c", "lung"), ("d", "heart")):
        words = ["coordinator", "runs", "start", runs, tmp_path / "cohort.toml", f"--name={name}", f"--study={study}"]
        assert fedbnsl(*words).code == 0
    listed = fedbnsl("coordinator", "runs", "list", runs).out
    assert [line.split()[0 if line[0] in "abcd" else 1].rstrip(":") for line in listed.splitlines()] == [
        *("heart", "a", "d", "lung", "c"),
        *("study", "b"),
    ]
    told = json.loads(fedbnsl("coordinator", "runs", "list", runs, "--json").out)
    assert [(one["name"], one["study"]) for one in told] == [("a", "heart"), ("d", "heart"), ("c", "lung"), ("b", "")]
    assert len({one["plan_digest"] for one in told}) == 1, "a study is no part of the plan"
    told = json.loads(fedbnsl("coordinator", "runs", "list", runs, "--study=heart", "--json").out)
    assert [one["name"] for one in told] == ["a", "d"]
    assert "heart" in fedbnsl("coordinator", "runs", "show", runs, "d").out


def test_a_run_that_an_earlier_version_queued_is_of_no_study(tmp_path: Path) -> None:
    run = queue.add(tmp_path, PLAN, "first")
    file = run.folder / "queue.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["study"]
    file.write_text(json.dumps(content), encoding="utf-8")
    assert queue.read(run.folder) == run


@pytest.mark.parametrize("options", [["--at=https://hub:8443"], ["--token-file=t"], ["--ca=c"], []])
def test_2_a_place_for_runs_is_a_folder_or_a_coordinator(
    fedbnsl: Callable[..., Outcome], options: list[str], tmp_path: Path
) -> None:
    folder = [tmp_path] if options and not options[0].startswith("--at") else []
    assert fedbnsl("coordinator", "runs", "list", *folder, *options).code == 2


def test_a_run_that_is_over_is_not_waited_for(tmp_path: Path, fedbnsl: Callable[..., Outcome]) -> None:
    run = queue.add(tmp_path, PLAN, "first")
    waited = fedbnsl("coordinator", "runs", "wait", tmp_path, "first", "--timeout=0")
    assert (waited.code, "run first is not over after 0 s: queued" in waited.err) == (6, True)
    queue.want(run, "stop")
    waited = fedbnsl("coordinator", "runs", "wait", tmp_path, "first")
    assert (waited.code, "run first is over: stopped" in waited.err) == (10, True)
