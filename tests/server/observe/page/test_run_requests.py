"""What operators ask of a coordinator's runs over HTTPS: by role, repeated, and wrong."""

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from fedbnsl.errors import IdentityError, PlanError, ProtocolError, SetupError, UnreachableError
from fedbnsl.plan.plan import Plan
from fedbnsl.web.operators import Operators
from fedbnsl.web.port import WebPort
from fedbnsl_client.cancellation import Leaving
from fedbnsl_client.observe.site_page import ShownRun, SitePage
from fedbnsl_client.observe.site_view import SiteView
from fedbnsl_client.site import roles as roles_of_a_site
from fedbnsl_server.identity.roles import EJECT, PAUSE, RESUME, ROLES, START, STOP
from fedbnsl_server.observe.page.runs_page import RunsPage
from fedbnsl_server.runs.folder import RunsFolder
from fedbnsl_server.runs.remote import RemoteRuns
from fedbnsl_server.store.history import Past
from fedbnsl_server.store.run_id import RunIdentity
from federation_folder import make_federation
from http_asks import ask

PLAN = Plan(n_participants=2, variables=("a", "b", "c"), sites=("north", "south"), name="cohort")


class Served:
    """A page of a folder of runs that nobody plays, and an operator of each role."""

    def __init__(self, folder: Path) -> None:
        self.federation = make_federation(folder / "lab")
        operators = Operators(ROLES, folder=self.federation.folder)
        self.tokens = {role: operators.add(role, role) for role in ROLES.names}
        for role, token in self.tokens.items():
            (folder / role).write_text(token, encoding="utf-8")
        self.page = RunsPage("127.0.0.1:0", federation=self.federation)
        self.runs = self.page.requests.runs = RunsFolder(folder / "runs")
        self.folder, self.port = folder, self.page.port.port
        self.ca = self.federation.folder / "ca.pem"
        self.ask = partial(ask, self.port, context=ssl.create_default_context(cafile=self.ca))

    def by(self, role: str) -> RemoteRuns:
        return RemoteRuns(f"https://127.0.0.1:{self.port}", token_file=self.folder / role, ca=self.ca)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "runs").mkdir()
    served = Served(tmp_path)
    with served.page:
        yield served


def actions_of(port: WebPort) -> list[str]:
    """Of all routes that do more than show."""
    return sorted(route.name for route in port._routes if set(route.methods or ()) - {"GET", "HEAD"})


def test_every_route_that_changes_something_is_in_the_table_of_its_side(served: Served) -> None:
    assert actions_of(served.page.port) == sorted(ROLES.needs)
    view = SiteView("north", "127.0.0.1:50051")
    runs = {"": ShownRun(view, Leaving())}
    with SitePage("127.0.0.1:0", lambda: runs, folder=served.folder, proposals=dict) as page:
        assert actions_of(page.port) == sorted(roles_of_a_site.ROLES.needs)


def test_each_role_may_do_what_the_table_says_and_no_more(served: Served) -> None:
    served.runs.start(PLAN, "known")
    calls = {
        START: lambda runs: runs.start(PLAN, "known"),
        RESUME: lambda runs: runs.want("known", "run"),
        PAUSE: lambda runs: runs.want("known", "pause"),
        STOP: lambda runs: runs.want("known", "stop"),
        EJECT: lambda runs: runs.eject("known", "north", None),
    }
    assert set(calls) == set(ROLES.needs)
    for role in ROLES.names:
        runs = served.by(role)
        assert [one["name"] for one in runs.all()] == ["known"]
        assert runs.one("known")["plan_digest"] == PLAN.digest().hex()
        for action, call in calls.items():
            before = served.runs.one("known")
            if ROLES.allow(role, action) and action == EJECT:
                with pytest.raises(Exception, match="holds no run"):  # it has not begun
                    call(runs)
            elif ROLES.allow(role, action):
                call(runs)
            else:
                with pytest.raises(IdentityError, match=f"{role} may not {action}: the role is {role}, it takes"):
                    call(runs)
                assert served.runs.one("known") == before


def test_what_is_asked_for_twice_is_done_once(served: Served) -> None:
    runs = served.by("administer")
    first = runs.start(PLAN, "mine", "heart")
    assert runs.start(PLAN, "mine", "heart") == first
    assert len(runs.all()) == 1
    with pytest.raises(SetupError, match="a run of another plan or study"):
        runs.start(PLAN.with_settings(rounds=7), "mine", "heart")
    with pytest.raises(SetupError, match="a run of another plan or study"):
        runs.start(PLAN, "mine", "lung")
    stopped = runs.want("mine", "stop")
    assert stopped["state"] == "stopped"
    assert runs.want("mine", "stop") == stopped
    assert runs.start(PLAN, "mine", "heart") == stopped, "the run as it stands"
    assert served.by("run").want("mine", "run")["state"] == "queued"


def test_a_study_is_no_part_of_the_plan(served: Served) -> None:
    told = served.by("run").start(PLAN, "mine", "heart")
    assert (told["study"], told["plan_digest"]) == ("heart", PLAN.digest().hex())
    assert "heart" not in (served.folder / "runs" / "mine" / "queued-plan.toml").read_text(encoding="utf-8")


def test_what_is_wrong_is_said_as_on_the_machine_itself(served: Served) -> None:
    runs = served.by("run")
    with pytest.raises(SetupError, match="has no run 'other'"):
        runs.one("other")
    with pytest.raises(SetupError, match="cannot be the name of a run"):
        runs.start(PLAN, "../up")
    with pytest.raises(SetupError, match="cannot be the name of a run"):
        runs.start(PLAN, "a b")
    with pytest.raises(SetupError, match="cannot be the name of a study"):
        runs.start(PLAN, "mine", "a/b")
    with pytest.raises(SetupError, match="the plan does not name its variables"):
        runs.start(Plan(n_participants=2), "mine")
    runs.start(PLAN, "mine")
    with pytest.raises(SetupError, match="has no result yet: queued"):
        runs.files("mine")
    assert [one.name for one in (served.folder / "runs").iterdir()] == ["mine"]


def test_a_plan_that_is_no_plan_or_another_one_is_not_queued(served: Served) -> None:
    runs = served.by("run")
    digest = PLAN.digest().hex()
    for content, error in (
        ({"plan": "rounds = 'many'", "plan_digest": digest}, PlanError),
        ({"plan": PLAN.to_toml(), "plan_digest": "00"}, ProtocolError),
        ({"plan": 3}, SetupError),
    ):
        with pytest.raises(error):
            runs._json("/api/runs/mine/start", content)
    bearer = f"Bearer {served.tokens['run']}"
    for body in ("[]", "{", "[" * 100_000, "x" * (5 * 2**20)):
        reply = served.ask("/api/runs/mine/start", method="POST", body=body, Authorization=bearer)
        assert reply.status == 409, body[:10]
        assert json.loads(reply.body)["exit_code"] in (3, 5)
    assert served.runs.all() == []


def test_only_files_of_a_result_are_handed_out(served: Served) -> None:
    served.runs.start(PLAN, "mine")
    folder = served.folder / "runs" / "mine"
    for name in ("result.json", "edges.csv", "checkpoint.npz", "eject-order.json", "run.lock"):
        (folder / name).write_text('{"state": "finished", "sites": [], "edges": [], "rounds": [], "reason": ""}')
    runs = served.by("view")
    assert sorted(runs.files("mine")) == ["edges.csv", "result.json"]
    assert runs.file("mine", "edges.csv") == (folder / "edges.csv").read_bytes()
    for name in ("checkpoint.npz", "queue.json", "eject-order.json", "../../lab/ca.key", "nothing", ".."):
        with pytest.raises((SetupError, ProtocolError)):
            runs.file("mine", name)


def test_a_coordinator_of_one_run_says_that_it_has_no_queue(served: Served) -> None:
    served.page.requests.runs = None
    with pytest.raises(SetupError, match="plays one run, and has no queue"):
        served.by("run").start(PLAN, "mine")


def test_a_token_is_shown_to_the_coordinator_alone(served: Served, tmp_path: Path) -> None:
    there = f"https://127.0.0.1:{served.port}"
    with pytest.raises(IdentityError, match="a certificate that is not trusted here"):
        RemoteRuns(there, token_file=tmp_path / "view").all()
    for url in (there.replace("https", "http"), "127.0.0.1:8443", f"{there}/runs", "https://", "file:///etc/passwd"):
        with pytest.raises(SetupError, match="expected https://HOST:PORT"):
            RemoteRuns(url, token_file=tmp_path / "view", ca=served.ca)
    (tmp_path / "wrong").write_text("0123456789abcdef" * 3, encoding="utf-8")
    with pytest.raises(IdentityError, match="this token is not known here"):
        RemoteRuns(there, token_file=tmp_path / "wrong", ca=served.ca).all()
    served.page.open(PLAN, tmp_path / "one", RunIdentity(1, datetime.now(UTC)), past=Past())
    with pytest.raises(ProtocolError, match="303"):  # of one run alone, the first page sends on to it
        served.by("view")._ask("/")
    served.page.port.__exit__(None, None, None)
    with pytest.raises(UnreachableError, match="does not answer"):
        served.by("view").all()
