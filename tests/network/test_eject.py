"""A site that is put out of a run: while sites join, while rounds are played, and with the run set back."""

import errno
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import EjectedError, FedbnslError, ResultError, SetupError
from fedbnsl.graphs.files import read_edges
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.session import Session
from fedbnsl_server.cli import _summarise  # pyright: ignore[reportPrivateUsage]
from fedbnsl_server.sites import membership_log
from fedbnsl_server.sites.ejection import Ejected, round_to_go_on_after
from fedbnsl_server.store import checkpoint, operator_commands
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise
from network.test_resume import (
    GRAPH_FILES,
    LONG_S,
    PLAN,
    SITES,
    Federation,
    address,
    coordinate_until,
    events,
    sites,
    tables,
)
from private_site import NAMES, private_plan
from report_runs import Page

__all__ = ["address", "sites", "tables"]  # fixtures

OTHERS = ("a", "b")


@pytest.fixture(scope="module")
def without_c(tables: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that the third site was never part of."""
    out = tmp_path_factory.mktemp("without") / "run"
    simulate(PLAN.with_settings(n_participants=2), {site: tables[site] for site in OTHERS}, out)
    return out


Scheme = Callable[..., dict[str, operator_commands.Answer]]


@pytest.fixture
def eject_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scheme:
    """Give a command when c is about to answer a round, and let it go on when there is an answer."""

    def planned(round_: int, site: str = "c", from_round: int | None = None) -> dict[str, operator_commands.Answer]:
        found: dict[str, operator_commands.Answer] = {}
        genuine = Session.push

        def push(self: Session, update: LocalUpdate) -> None:
            if (update.site, update.round) == ("c", round_) and not found:
                command = operator_commands.give(tmp_path / "run", site, from_round)
                found["answer"] = awaited(tmp_path / "run", command)
            genuine(self, update)

        monkeypatch.setattr(Session, "push", push)
        return found

    return planned


def awaited(run: Path, command: operator_commands.EjectCommand) -> operator_commands.Answer:
    until = time.monotonic() + LONG_S
    while (answer := operator_commands.answer_to(run, command)) is None:
        assert time.monotonic() < until, "nobody took the command"
        time.sleep(0.02)
    return answer


def assert_same_graph(run: Path, other: Path) -> None:
    for name in GRAPH_FILES:
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


def assert_c_is_out(sites: Federation, result: Mapping[str, Any], *, after: int, from_round: int | None) -> None:
    end = sites.ends["c"].exception(LONG_S)
    assert isinstance(end, EjectedError)
    assert str(end) == "the coordinator refused: site 'c' was taken out of this run by the coordinator's operator"
    assert "took your site out" in end.remedy
    assert not [text for text in sites.told_at_sites if "could not be told" in text]
    assert sites.ends["a"].result(LONG_S) == sites.ends["b"].result(LONG_S)
    assert result["state"] == "finished"
    assert sorted(result["sites"]) == list(OTHERS)
    (one,) = result["ejected"]
    assert (one["site"], one["after_round"], one["from_round"]) == ("c", after, from_round)
    for entry in result["rounds"]:
        assert ("c" in entry["contributed"]) == (entry["round"] <= after)
    assert any(text.startswith("c was ejected") for text in result["warnings"])


# ---- the same as without it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [True, False])
def test_a_site_that_is_ejected_while_sites_join_leaves_the_run_of_the_others(
    joined: bool, sites: Federation, without_c: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PLAN.with_settings(sites=SITES)
    if joined:
        sites.start("c")
        kill = "genuine = Servicer.PullTask\nasync def pull(self, request, context): die()\nServicer.PullTask = pull"
        assert coordinate_until(kill, plan, tmp_path / "run", sites.address) == 9
        assert [event["site"] for event in events(tmp_path / "run", "seated")] == ["c"]
        command = operator_commands.give(tmp_path / "run", "c", None)

        def others_after_c() -> None:  # otherwise the run may be over before c calls again, and c calls in vain
            sites.ends["c"].exception(LONG_S)
            sites.start(*OTHERS)

        late = threading.Thread(target=others_after_c)
        result = sites.coordinate(plan, tmp_path / "run", on_listening=lambda address: late.start())
        late.join()
    else:

        def listening(address: str) -> None:
            nonlocal command
            command = operator_commands.give(tmp_path / "run", "c", None)
            sites.start()

        command = None
        monkeypatch.setattr(Session, "join", after_the_answer(Session.join, tmp_path / "run", lambda: command))
        result = sites.coordinate(plan, tmp_path / "run", on_listening=listening)
    assert command is not None
    assert awaited(tmp_path / "run", command).done
    assert_c_is_out(sites, result, after=0, from_round=None)
    assert_same_graph(tmp_path / "run", without_c)


def after_the_answer(join: Any, run: Path, given_by: Callable[[], operator_commands.EjectCommand | None]) -> Any:
    def waits(self: Session, request: Any) -> Any:
        given = given_by()
        assert given is not None
        if request.site == "c":
            awaited(run, given)
        return join(self, request)

    return waits


@pytest.mark.parametrize(("during", "from_round"), [(1, None), (1, 1), (3, 1), (6, 1)])
def test_nothing_of_a_site_is_left_if_no_round_holds_it(
    during: int, from_round: int | None, eject_at: Scheme, sites: Federation, without_c: Path, tmp_path: Path
) -> None:
    found = eject_at(during, from_round=from_round)
    sites.start()
    result = sites.coordinate(PLAN, tmp_path / "run")
    assert found["answer"].done
    assert found["answer"].text == "c was ejected: nothing of it is in the result; round 1 is next"
    assert_c_is_out(sites, result, after=0, from_round=from_round)
    assert_same_graph(tmp_path / "run", without_c)


@pytest.mark.parametrize("settings", [{}, {"send_tolerance": 0.02, "value_type": "float32"}])
def test_a_run_that_is_set_back_goes_on_from_the_checkpoint_before(
    settings: dict[str, Any], eject_at: Scheme, sites: Federation, tables: dict[str, Dataset], tmp_path: Path
) -> None:
    """As one whose site c was ejected when that round was open."""
    plan = PLAN.with_settings(**settings)
    found = eject_at(5, from_round=3)
    sites.start()
    result = sites.coordinate(plan, tmp_path / "run")
    assert found["answer"].done
    assert_c_is_out(sites, result, after=2, from_round=3)
    (tmp_path / "run").rename(tmp_path / "late")
    eject_at(3)
    run_without_the_later_rounds_of_c(plan, tables, sites.address, tmp_path / "run")
    assert_same_graph(tmp_path / "run", tmp_path / "late")


def run_without_the_later_rounds_of_c(plan: Plan, tables: dict[str, Dataset], address: str, run: Path) -> None:
    """A run that was never set back: c is ejected as round 3 is open, by a command that is given already."""
    sites = Federation(tables, address)
    try:
        sites.start()
        assert_c_is_out(sites, sites.coordinate(plan, run), after=2, from_round=None)
    finally:
        sites.close()


def test_without_setting_back_the_rest_of_the_run_finds_the_graph_of_the_rest(
    eject_at: Scheme, address: str, tmp_path: Path
) -> None:
    drawn = synthesise(6, 6, 3, 800, 3)
    tables = {site: Dataset(drawn.variables, X) for site, X in zip(SITES, drawn.tables, strict=True)}
    tables["c"] = Dataset(drawn.variables, tables["c"].X[:, ::-1].copy())  # the columns of a liar
    plan = Plan.load("fed-sparse").with_settings(variables=drawn.variables, join_deadline_s=LONG_S)
    own = simulate(plan.with_settings(n_participants=2), {site: tables[site] for site in OTHERS}, tmp_path / "own")
    spoilt = simulate(plan, tables, tmp_path / "spoilt")
    eject_at(10)
    sites = Federation(tables, address)
    try:
        sites.start()
        result = sites.coordinate(plan, tmp_path / "run")
        assert_c_is_out(sites, result, after=9, from_round=None)
    finally:
        sites.close()

    def shd(run: Path) -> int:
        return score(read_edges(run / "edges.csv", drawn.variables).dag, drawn.W != 0).shd

    assert own["state"] == spoilt["state"] == "finished"
    assert shd(tmp_path / "run") == shd(tmp_path / "own") < shd(tmp_path / "spoilt")


@pytest.mark.parametrize(
    ("from_round", "words"), [(None, "ejected after round 3"), (3, "ejected from round 3 on"), (1, "ejected: nothing")]
)
def test_the_page_and_the_summary_show_an_ejected_site_as_ejected(
    from_round: int | None, words: str, eject_at: Scheme, sites: Federation, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    eject_at(4, from_round=from_round)
    sites.start()
    result = sites.coordinate(PLAN, tmp_path / "run")
    after = result["ejected"][0]["after_round"]
    page = Page(write_report(tmp_path / "run").read_text(encoding="utf-8"))
    rows = {row[0]: row for row in page.tables["contributions"][1:]}
    assert sorted(rows) == list(SITES)
    assert rows["c"][2] == f"{after} of 6"
    assert rows["c"][4].startswith(words)
    assert (rows["a"][4], rows["b"][4]) == ("none", "none")
    assert "c" not in [row[0] for row in page.tables.get("influence", [])]
    *of_sites, everything = page.tables["bytes"][1:]
    (of_c,) = (row for row in of_sites if row[0].startswith("c"))
    assert of_c[0].startswith(f"c ({words}")
    assert (of_c[1] == "0") == (after == 0)
    for column in range(1, 6):
        assert sum(number(row[column]) for row in of_sites) == number(everything[column])
    _summarise(result, tmp_path / "run")
    assert f"c was ejected{f' after round {after}' if after else ''}: " in capsys.readouterr().out


def number(shown: str) -> int:
    return int("".join(filter(str.isdigit, shown)))


# ---- a coordinator that is killed ----------------------------------------------------------------------------------

KILLS = {
    "before anything is written": "membership_log.note_ejected = lambda log, ejected: die()",
    "between line and checkpoint": """
note = membership_log.note_ejected
membership_log.note_ejected = lambda log, ejected: (note(log, ejected), die())
""",
    "between checkpoint and kept checkpoints": """
from fedbnsl_server.store.kept_checkpoints import KeptCheckpoints
KeptCheckpoints.forget_after = lambda kept, t: die()
""",
    "before the answer": "from fedbnsl_server.store import operator_commands as commands\n"
    "commands.settle = lambda folder, answer: die()",
}


@pytest.mark.parametrize(
    ("kill", "from_round"),
    [
        ("before anything is written", 1),
        ("between line and checkpoint", 1),
        ("between line and checkpoint", 3),
        ("between checkpoint and kept checkpoints", 3),
        ("before the answer", 1),
    ],
)
def test_a_command_is_carried_out_once_whenever_the_coordinator_dies(
    kill: str, from_round: int, eject_at: Scheme, sites: Federation, tables: dict[str, Dataset], without_c: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    run = tmp_path / "run"
    found = eject_at(5, from_round=from_round)
    sites.start()
    assert coordinate_until(KILLS[kill], PLAN, run, sites.address) == 9
    result = sites.coordinate(PLAN, run)
    assert_c_is_out(sites, result, after=from_round - 1, from_round=from_round)
    assert found["answer"].done
    assert len(events(run, "ejected")) == 1
    assert operator_commands.pending(run) is None
    never_longer = without_c
    if from_round > 1:
        never_longer = run.rename(tmp_path / "set back")
        eject_at(from_round)
        run_without_the_later_rounds_of_c(PLAN, tables, sites.address, run)
    assert_same_graph(run, never_longer)


@pytest.mark.parametrize("from_round", [None, 3])
def test_an_ejection_that_lacks_room_is_finished_once_there_is_room(
    from_round: int | None, eject_at: Scheme, sites: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, save, lacking = membership_log.note_ejected, checkpoint.save, [False]

    def noted(*arguments: Any) -> None:
        note(*arguments)
        lacking[0] = True

    def saved(*arguments: Any, **named: Any) -> None:
        if lacking.pop():
            lacking.append(False)
            raise ResultError("the checkpoint cannot be written") from OSError(errno.ENOSPC, "No space left on device")
        lacking.append(False)
        save(*arguments, **named)

    monkeypatch.setattr(membership_log, "note_ejected", noted)
    monkeypatch.setattr(checkpoint, "save", saved)
    found = eject_at(4, from_round=from_round)
    sites.start()
    result = sites.coordinate(PLAN, tmp_path / "run")
    assert_c_is_out(sites, result, after=3 if from_round is None else from_round - 1, from_round=from_round)
    assert found["answer"].done
    assert len(events(tmp_path / "run", "ejected")) == 1


def test_an_earlier_ejection_is_told_as_it_is_after_the_run_was_set_back_further() -> None:
    first = Ejected("1", "x", None, 10, 50, "then")
    lines = [{"event": "ejected", **asdict(one)} for one in (first, Ejected("2", "y", 1, 0, 50, "later"))]
    assert [one.after_round for one in membership_log.replay(lines).ejected] == [0, 0]


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "site", "from_round", "text"),
    [
        ({}, "d", None, "no site 'd' in this run; its sites: a, b, c"),
        ({"quorum": 3}, "c", None, "without c the run would have 2 sites, and it needs 3"),
        ({}, "c", 7, "--from-round 7: 5 rounds are complete; name one from 1 to 6"),
        ({}, "c", None, "round 5 (refit) went into the result whole, with what c sent. Repeat it: --from-round 5."),
    ],
)
def test_a_command_that_cannot_be_carried_out_changes_nothing(
    settings: dict[str, Any], site: str, from_round: int | None, text: str, eject_at: Scheme, sites: Federation,
    tables: dict[str, Dataset], tmp_path: Path,
) -> None:  # fmt: skip
    found = eject_at(6, site=site, from_round=from_round)
    sites.start()
    result = sites.coordinate(PLAN.with_settings(**settings), tmp_path / "run")
    assert found["answer"].text.startswith(text)
    assert "--help" not in found["answer"].text, "the answer is no command line's error"
    assert not found["answer"].done
    assert (result["state"], result["ejected"], sites.errors()) == ("finished", [], {type(None)})
    simulate(PLAN.with_settings(**settings), tables, tmp_path / "alone")
    assert_same_graph(tmp_path / "run", tmp_path / "alone")


def test_a_finished_run_refuses_the_command_and_says_so(sites: Federation, tmp_path: Path) -> None:
    sites.start()
    sites.coordinate(PLAN, tmp_path / "run")
    command = operator_commands.give(tmp_path / "run", "c", 1)
    before = (tmp_path / "run" / "result.json").read_bytes()
    sites.coordinate(PLAN.with_settings(), tmp_path / "run")
    answer = operator_commands.answer_to(tmp_path / "run", command)
    assert answer is not None
    assert (answer.done, answer.text) == (False, "the run is finished: begin a new one without c")
    assert (tmp_path / "run" / "result.json").read_bytes() == before


def test_the_command_waits_for_a_coordinator_that_works_and_leaves_it_to_one_that_does_not(
    sites: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, said = tmp_path / "run", []
    genuine = Session.push

    def push(self: Session, update: LocalUpdate) -> None:
        if (update.site, update.round) == ("c", 3) and not said:
            said.append(
                CliRunner().invoke(fedbnsl, ["coordinator", "eject", str(run), "nobody"], standalone_mode=False)
            )
            said.append(CliRunner().invoke(fedbnsl, ["coordinator", "eject", str(run), "c"], standalone_mode=False))
        genuine(self, update)

    monkeypatch.setattr(Session, "push", push)
    sites.start()
    assert coordinate_until("def on_round(t):\n  if t == 4: terminate()", PLAN, run, sites.address) == 0
    unknown, taken = said
    assert isinstance(unknown.exception, SetupError)
    assert "no site 'nobody' in this run" in str(unknown.exception)
    assert taken.exception is None, taken.exception
    assert taken.output == (
        "c was ejected after round 2: later rounds went on without it, from what it had helped to find; "
        "round 3 is next\n"
    )
    left = CliRunner().invoke(fedbnsl, ["coordinator", "eject", str(run), "b"], standalone_mode=False)
    assert left.output == f"no coordinator works on {run}: the command is taken when it is served again\n"
    command = operator_commands.pending(run)
    assert command is not None
    assert_c_is_out(sites, sites.coordinate(PLAN, run), after=2, from_round=None)
    answer = operator_commands.answer_to(run, command)
    assert answer is not None
    assert answer.text.startswith("without b the run would have 1 site, and it needs 2")


def test_the_command_refuses_a_second_order_to_a_stopped_run_at_once(
    eject_at: Scheme, sites: Federation, tmp_path: Path
) -> None:
    found = eject_at(3)
    sites.start()
    run = tmp_path / "run"
    assert coordinate_until("def on_round(t):\n  if t == 4: terminate()", PLAN, run, sites.address) == 0
    assert found["answer"].done
    again = CliRunner().invoke(
        fedbnsl, ["coordinator", "eject", str(run), "c", "--from-round", "1"], standalone_mode=False
    )
    assert isinstance(again.exception, SetupError)
    assert "That is final" in str(again.exception)
    assert operator_commands.pending(run) is None
    assert sites.coordinate(PLAN, run)["state"] == "finished"


@pytest.mark.parametrize(
    ("after", "from_round", "text"),
    [
        (4, 2, r"c was ejected after round 4: .*That is final: the run cannot be set back for c any more"),
        (4, None, r"c was ejected after round 4: .*That is final"),
        (0, 1, r"c was ejected: nothing of it is in the result\. That is final"),
    ],
)
def test_a_second_order_about_a_site_is_refused_in_words_that_say_what_is_left_to_do(
    after: int, from_round: int | None, text: str
) -> None:
    before = [Ejected("1", "c", None, after, 80, "then")]
    rounds = [{"round": t, "kind": "admm", "contributed": OTHERS} for t in (1, 2, 3, 4, 5)]
    with pytest.raises(SetupError, match=text) as caught:
        round_to_go_on_after(
            "c", from_round, plan=PLAN, members=set(OTHERS), ejected=before, rounds=rounds, kept=[1, 2, 3, 4]
        )
    assert ("begin a new run without it, in another folder" in caught.value.remedy) is (after > 0)


def test_a_private_run_is_not_set_back() -> None:
    plan = private_plan(n_participants=3, variables=NAMES)
    rounds = [{"round": t, "kind": "admm", "contributed": SITES} for t in (1, 2)]
    ask = partial(round_to_go_on_after, "c", plan=plan, members=set(SITES), ejected=(), rounds=rounds, kept=[1, 2])
    assert ask(from_round=None) == ask(from_round=3) == 2
    with pytest.raises(SetupError, match="never draw again what they have released") as caught:
        ask(from_round=2)
    assert "new run without c" in caught.value.remedy


def test_no_site_is_taken_out_of_secure_sums_that_have_no_retries() -> None:
    settings = [
        "n_participants=4",
        "privacy.secure_aggregation=true",
        "privacy.delta=1e-6",
        "privacy.secure_aggregation_retries=0",
    ]
    plan = Plan.load("private-moments", settings)
    with pytest.raises(SetupError, match="allows for 0 lost sites") as caught:
        round_to_go_on_after("c", None, plan=plan, members={*SITES, "d"}, ejected=(), rounds=[], kept=[])
    assert "begin a new one without c" in caught.value.remedy


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def test_checkpoints_are_for_their_owner_and_a_few_are_kept(sites: Federation, tmp_path: Path) -> None:
    sites.start()
    plan = PLAN.with_settings(rounds=20, refit_rounds=0)
    sites.coordinate(plan, tmp_path / "run")
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [path.name for path in kept] == [f"round-{t:06d}.npz" for t in (3, 6, 9, 12, 15, 18)]
    for path in [*kept, tmp_path / "run" / "checkpoint.npz"]:
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_run_whose_checkpoint_is_gone_is_not_begun_again(
    sites: Federation, tables: dict[str, Dataset], tmp_path: Path
) -> None:
    simulate(PLAN, tables, tmp_path / "undisturbed")
    sites.start()
    stop = "def on_round(t):\n  if t == 4: die()"
    run = tmp_path / "run"
    assert coordinate_until(stop, PLAN, run, sites.address) == 9
    (run / "checkpoint.npz").unlink()
    (run / "checkpoints" / "round-000004.npz").unlink()
    with pytest.raises(ResultError, match=r"checkpoint.npz, the state after round 4, is missing") as caught:
        RunFolder.resume(run, PLAN)
    assert f"copy {run / 'checkpoints' / 'round-000003.npz'} there" in caught.value.remedy
    (run / "checkpoints" / "round-000003.npz").rename(run / "checkpoint.npz")
    assert sites.coordinate(PLAN, run)["state"] == "finished"
    assert_same_graph(run, tmp_path / "undisturbed")


def test_a_folder_takes_one_eject_at_a_time(tmp_path: Path) -> None:
    first = operator_commands.give(tmp_path, "a", 3)
    assert operator_commands.pending(tmp_path) == first
    assert (tmp_path / operator_commands.COMMAND).stat().st_mode & 0o777 == 0o600
    with pytest.raises(ResultError, match="another command waits"):
        operator_commands.give(tmp_path, "b", None)
    operator_commands.settle(tmp_path, operator_commands.Answer(first.id, True, "done"))
    second = operator_commands.give(tmp_path, "b", None)
    assert operator_commands.answer_to(tmp_path, second) is None, "that was the answer to another"


@pytest.mark.parametrize("content", ["", "[]", '{"id": "x"}', '{"id": "x", "site": "a", "from_round": "1"}'])
def test_a_file_that_is_no_order_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / operator_commands.COMMAND).write_text(content, encoding="utf-8")
    with pytest.raises(FedbnslError, match=operator_commands.COMMAND):
        operator_commands.pending(tmp_path)
