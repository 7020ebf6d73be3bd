"""What the site's page shows, without a browser."""

import json
import ssl
from functools import partial

import pytest

from fedbnsl.errors import SetupError
from fedbnsl.events.emitter import Event
from fedbnsl.events.security_log import NAME, lines
from fedbnsl.web.operators import Operators
from fedbnsl_client.cancellation import Leaving
from fedbnsl_client.observe.site_page import ShownRun, SitePage
from fedbnsl_client.observe.site_view import SiteView
from fedbnsl_client.site.roles import ROLES
from federation_folder import make_federation
from http_asks import ask

JOINED = {
    "plan": "ab" * 32, "plan_name": "mine", "rounds": 9, "dataset": "ward", "n_samples": 40, "paid_zcdp": 0.25,
    "price": {"epsilon": 1.0, "delta": 1e-6, "zcdp": 0.5}, "settings": {"rounds": 9, "sites": ["north", "south"]},
}  # fmt: skip


def shown(view: SiteView) -> dict:
    return json.loads(view.publisher.snapshot())


@pytest.fixture
def view():
    return SiteView("north", "127.0.0.1:50051")


def released(t: int, zcdp: float | None = 0.125) -> Event:
    return Event("released", "", {"round": t, "stage": "admm", "n_bytes": 100, "zcdp": zcdp, "again": False})


def test_what_left_the_site_is_counted_with_its_price(view):
    view.heard(Event("run joined", "", JOINED))
    view.heard(Event("round asked", "", {"round": 1, "stage": "admm"}))
    assert shown(view)["now"]["state"] == "computes"
    view.heard(released(1))
    view.heard(released(2))
    found = shown(view)
    assert [(one["round"], one["bytes"], one["zcdp"]) for one in found["releases"]["items"]] == [
        (1, 100, 0.125),
        (2, 100, 0.125),
    ]
    now = found["now"]
    assert (now["n_releases"], now["n_bytes"], now["zcdp"]) == (2, 200, 0.5), "with what was paid before"


def test_a_coordinator_that_does_not_answer_is_a_state_until_it_answers_or_the_run_is_over(view):
    view.heard(Event("run joined", "", JOINED))
    seen = [shown(view)["now"]["away"]]
    for kind in ("coordinator away", "coordinator back", "coordinator away"):
        view.heard(Event(kind, "", {}))
        seen.append(shown(view)["now"]["away"])
    assert shown(view)["now"]["state"] == "waits for a task", "what comes after, once it is back"
    view.heard(Event("run over", "", {"outcome": "UnreachableError", "reason": ""}))
    assert [*seen, shown(view)["now"]["away"]] == [False, True, False, True, False]


def test_no_other_site_is_named(view):
    view.heard(Event("run joined", "", JOINED))
    assert "south" not in view.publisher.snapshot().decode()
    assert shown(view)["site"]["settings"] == [["rounds", 9]]


def test_a_text_cannot_steer_a_terminal_or_a_page(view):
    view.note("\x1b[2Jwiped\u202e")
    assert shown(view)["log"]["items"][0][1] == r"\x1b[2Jwiped\u202e"


def test_beyond_this_machine_the_site_needs_a_certificate_of_its_own(view, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef", encoding="utf-8")
    (tmp_path / "bad.pem").write_text("no certificate", encoding="utf-8")
    for files, refusal in (
        ({"token_file": "token"}, "--web-token needs --web-certificate"),
        ({"certificate": "bad.pem"}, "--web-certificate goes with --web-token, or with operators"),
        ({"token_file": "token", "certificate": "bad.pem"}, "must hold a certificate and its key"),
        ({"token_file": "token", "certificate": "none.pem"}, "cannot be read"),
    ):
        with pytest.raises(SetupError, match=refusal):
            SitePage(
                "127.0.0.1:0",
                lambda: {"": ShownRun(view, Leaving())},
                **{option: tmp_path / name for option, name in files.items()},
            )
    with pytest.raises(SetupError, match="is not on this machine") as refused:
        SitePage("0.0.0.0:0", lambda: {"": ShownRun(view, Leaving())})
    assert "--web-certificate" in refused.value.remedy


def test_who_may_only_look_at_a_site_cannot_make_it_leave(view, tmp_path):
    """The page's certificate is one of its own."""
    folder, federation = tmp_path / "north", make_federation(tmp_path / "lab")
    folder.mkdir()
    operators = Operators(ROLES, folder=folder)
    tokens = {role: operators.add(f"the-{role}", role) for role in ROLES.names}
    leaving = Leaving()
    certificate = federation.folder / "server.pem"
    with SitePage("127.0.0.1:0", lambda: {"": ShownRun(view, leaving)}, certificate=certificate, folder=folder) as page:
        context = ssl.create_default_context(cafile=federation.folder / "ca.pem")
        act = partial(ask, page.port.port, "/leave", method="POST", context=context)
        assert act(Authorization=f"Bearer {tokens['view']}")[::2] == (
            403,
            b"the-view may not leave a run: the role is view, it takes approve",
        )
        assert not leaving.why
        assert act(Authorization=f"Bearer {tokens['approve']}").status == 202
        assert leaving.why
    entries = [line.entry for line in lines(folder / NAME)]
    assert [(one["event"], one["operator"]) for one in entries] == [
        ("refused", "the-view"),
        ("operator", "the-approve"),
    ]
