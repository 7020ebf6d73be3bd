"""The service of a folder of runs: what it makes of files that are not as they should be."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.events.security_log import unrecorded
from fedbnsl.plan.plan import Plan
from fedbnsl_server.grpc_api.listener import Listener
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_server.runs import queue, service
from fedbnsl_server.runs.queue import QueuedRun
from fedbnsl_server.runs.service import Service, serve_runs
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_server.store.run_id import RunIdentity

PLAN = Plan(n_participants=2, variables=("a", "b", "c"), sites=("north", "south"))


class Serving:
    """A service without a port, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.said: list[tuple[str, str]] = []
        self.door = Listener()
        self.service = Service(
            folder,
            self.door,
            ServerSettings("127.0.0.1:0", lambda address: None),
            at_once=2,
            follower_of=lambda name: Follower(notice=lambda text: self.said.append((name, text))),
            record=unrecorded,
        )

    @property
    def offered(self) -> set[str]:
        self.service.look()
        return {one.name for one in self.door.others()}


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


def test_2_a_folder_of_runs_has_one_service(tmp_path: Path) -> None:
    with service._alone_in(tmp_path), pytest.raises(SetupError, match="another coordinator plays the runs"):
        serve_runs(tmp_path, ServerSettings("127.0.0.1:0", lambda address: None))
