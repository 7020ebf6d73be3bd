"""The service of a folder of runs: what it makes of files that are not as they should be."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.events.emitter import Event
from fedbnsl.events.security_log import unrecorded
from fedbnsl.plan.plan import Plan
from fedbnsl_server.grpc_api.listener import Listener
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.observe.page import run_report
from fedbnsl_server.observe.page.runs_page import RunsPage
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_server.runs import queue, service
from fedbnsl_server.runs.queue import QueuedRun
from fedbnsl_server.runs.service import Service, serve_runs
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store.history import Past
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_server.store.run_id import RunIdentity
from fedbnsl_server.store.site_ledgers import SiteLedgers
from http_asks import ask
from least_result import LEAST_RESULT

PLAN = Plan(n_participants=2, variables=("a", "b", "c"), sites=("north", "south"))


class Serving:
    """A service without a port, and what it said."""

    def __init__(self, folder: Path, page: RunsPage | None = None) -> None:
        self.said: list[tuple[str, str]] = []
        self.door = Listener()
        self.service = Service(
            folder,
            self.door,
            ServerSettings("127.0.0.1:0", lambda address: None, page=page),
            at_once=2,
            follower_of=lambda name: Follower(notice=lambda text: self.said.append((name, text))),
            record=unrecorded,
        )

    @property
    def offered(self) -> set[str]:
        self.service.look()
        return {one.name for one in self.door.others()}


def finish(run: QueuedRun, site: str) -> None:
    if not (run.folder / "run.json").exists():
        began(run)
    result = {**LEAST_RESULT, "sites": {site: {"n_samples": 30}}}
    (run.folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def began(run: QueuedRun) -> None:
    RunFolder.open(run.folder, PLAN, RunIdentity(run.run, run.since)).close()


DAMAGES: dict[str, Callable[[QueuedRun], object]] = {
    "no wish": lambda run: (run.folder / "queue.json").write_text(""),
    "a time without a zone": lambda run: (run.folder / "queue.json").write_text(
        json.dumps({"schema": "fedbnsl.queue/1", "run": "1", "wanted": "run", "since": "2026-11-23T10:00:00"})
    ),
    "no number": lambda run: (run.folder / "queue.json").write_text(
        json.dumps(
            {"schema": "fedbnsl.queue/1", "run": "1" * 17, "wanted": "run", "since": "2026-11-23T10:00:00+00:00"}
        )
    ),
    "nested without end": lambda run: (run.folder / "queue.json").write_text("[" * 100_000),
    "no plan": lambda run: (run.folder / "queued-plan.toml").unlink(),
    "a plan that is none": lambda run: (run.folder / "queued-plan.toml").write_text("rounds = 'many'"),
    "a result that is none": lambda run: (began(run), (run.folder / "result.json").write_text("{")),
    "no lock": lambda run: (began(run), (run.folder / "run.lock").unlink()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_cannot_be_read_is_said_once_and_stops_no_other(tmp_path: Path, damage: str) -> None:
    bad = queue.add(tmp_path, PLAN, "bad")
    queue.add(tmp_path, PLAN, "good")
    DAMAGES[damage](bad)
    serving = Serving(tmp_path)
    assert serving.offered == {"good"}
    queue.add(tmp_path, PLAN, "later")
    assert serving.offered == {"good", "later"}
    assert [name for name, _ in serving.said] == ["bad"]


def test_a_run_that_lacks_room_is_tried_again_and_one_that_fails_is_not(tmp_path: Path) -> None:
    async def outcome(error: Exception) -> tuple[str, bool]:
        serving = Serving(tmp_path)
        run = queue.add(tmp_path, PLAN)

        async def fail(run: QueuedRun) -> None:
            raise error

        serving.service._play_one = fail
        serving.service.look()
        serving.service._do_what_is_wanted()
        await asyncio.wait(serving.service._tasks.values())
        wanted = queue.read(run.folder).wanted
        serving.service.look()
        serving.service._do_what_is_wanted()
        began_again = bool(serving.service._tasks)
        queue.remove(run)
        return wanted, began_again

    no_room = ResultError("no room")
    no_room.__cause__ = OSError(28, "No space left on device")
    assert asyncio.run(outcome(no_room)) == ("run", False)
    assert asyncio.run(outcome(ResultError("it is damaged"))) == ("stop", False)


def test_the_page_shows_a_run_as_its_folder_tells_it_until_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ended before the service began, and one that it has played, which a site is forgotten of."""

    async def report_of(folder: Path) -> str:
        return (folder / "result.json").read_text(encoding="utf-8")

    def listed(page: RunsPage) -> dict[str, tuple[str, bool]]:
        return {one["name"]: (one["state"], one["page"]) for one in json.loads(page._list.snapshot())["runs"]}

    monkeypatch.setattr(run_report, "made", report_of)
    before = queue.add(tmp_path, PLAN, "before")
    finish(before, "north")
    with RunsPage("127.0.0.1:0") as page:
        serving = Serving(tmp_path, page)
        serving.service.look()
        assert listed(page) == {"before": ("finished", True)}
        assert ask(page.port.port, "/runs/before").headers["location"] == "/runs/before/report"
        queue.add(tmp_path, PLAN, "played")

        async def play(run: QueuedRun) -> None:
            live = page.open(PLAN, run.folder, RunIdentity(run.run, run.since), past=Past())
            live.heard(Event("site away", run.name, {"site": "north"}))
            mailbox, ledgers = Mailbox(PLAN, asyncio.get_running_loop()), SiteLedgers(tmp_path / "site-ledgers.json")
            servicer = Servicer(PLAN, run.run, Roster(PLAN), mailbox, ledgers, name=run.name)
            servicer.progress.state = "finished"
            serving.door.open(servicer)
            finish(run, "north")
            live.heard(Event("run over", run.name, {"outcome": "finished", "reason": ""}))

        async def played() -> None:
            serving.service.look()
            serving.service._do_what_is_wanted()
            await asyncio.wait(serving.service._tasks.values())

        serving.service._play_one = play
        asyncio.run(played())
        serving.service.look()
        assert (listed(page)["played"], [*serving.door.statuses()]) == (("finished", True), ["played"])
        assert b"north" in ask(page.port.port, "/runs/played/state.json").body
        assert b"north" in ask(page.port.port, "/runs/played/report").body

        finish(queue.named(tmp_path, "played"), "forgotten-1")
        serving.service.look()
        assert (listed(page)["played"], [*serving.door.statuses()]) == (("finished", True), [])
        assert ask(page.port.port, "/runs/played/state.json").status == 404
        assert b"north" not in ask(page.port.port, "/runs/played/report").body
        for name in ("before", "played"):
            queue.remove(queue.named(tmp_path, name))
        serving.service.look()
        assert listed(page) == {}
        assert ask(page.port.port, "/runs/before/report").status == 404


def test_2_a_folder_of_runs_has_one_service(tmp_path: Path) -> None:
    with service._alone_in(tmp_path), pytest.raises(SetupError, match="another coordinator plays the runs"):
        serve_runs(tmp_path, ServerSettings("127.0.0.1:0", lambda address: None))
