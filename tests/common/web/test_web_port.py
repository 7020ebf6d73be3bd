"""The port of a page: who is answered, with which headers, and that no viewer is waited for."""

import json
import socket
import ssl
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route

from fedbnsl.errors import SetupError
from fedbnsl.web import connections, stream
from fedbnsl.web.access import LOGIN_POLICY, POLICY
from fedbnsl.web.port import WebPort
from fedbnsl.web.publisher import SnapshotPublisher
from fedbnsl.web.roles import Roles
from fedbnsl.web.stream import StreamedPublisher
from federation_folder import make_federation
from http_asks import ask
from waiting import until

PACKAGE = "fedbnsl.web"
TOKEN = "0123456789abcdef-and-more"
_LONG_S = 20.0


class Page:
    """A port with a snapshot publisher, and a form."""

    def __init__(self, address: str = "127.0.0.1:0", **settings) -> None:
        self.publisher, self.posted = SnapshotPublisher({"log": 1000}), []
        roles = Roles(("view", "change"), {"post a form": "change"}, unnamed="change")
        self.port = WebPort(address, package=PACKAGE, roles=roles, **settings)

        async def post(request):
            self.posted.append(request.path_params["name"])
            return JSONResponse({})

        self.port.add_routes([Route("/events", StreamedPublisher(self.port.streams, lambda request: self.publisher))])
        self.port.add_action("post a form", "/form/{name}", post)

    def __enter__(self) -> "Page":
        self.port.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.port.__exit__(*exception)

    def ask(self, path, **how):
        """Status, headers and body of an answer; see `http_asks.ask`."""
        return ask(self.port.port, path, **how)

    @property
    def origin(self) -> str:
        return self.port.url.rstrip("/")


@pytest.fixture
def page():
    with Page() as page:
        yield page


def viewer(page: Page) -> socket.socket:
    """A browser that has asked for the stream."""
    connection = socket.create_connection(("127.0.0.1", page.port.port), timeout=_LONG_S)
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return connection


@pytest.mark.parametrize("path", ["/static/page.css", "/static/dom.js", "/nothing", "/static/../../pyproject.toml"])
def test_every_answer_has_the_strict_policy_and_is_not_kept(page, path):
    _, headers, _ = page.ask(path)
    assert headers["Content-Security-Policy"] == POLICY
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY


def test_a_name_that_was_made_to_point_here_reads_nothing(page):
    for host in ("evil.example", "evil.example:8443", "127.0.0.1.evil.example", "", "localhost.evil", "[::2]"):
        assert page.ask("/static/page.css", Host=host)[0] in (400, 421), host
    for host in ("127.0.0.1", "localhost:9999", "LOCALHOST", "[::1]:8443"):
        assert page.ask("/static/page.css", Host=host)[0] == 200, host


def test_what_is_posted_must_come_from_the_page_itself(page):
    good, secret = {"Origin": page.origin, "Host": page.origin.removeprefix("http://")}, page.port.access.form_token
    good["X_Form_Token"] = secret
    for wrong in (
        {"Origin": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"X_Form_Token": ""},
        {"X_Form_Token": secret[:-1]},
        {"Origin": "http://evil.example", "Authorization": "Bearer of-nothing"},
    ):
        assert page.ask("/form/wrong", method="POST", **{**good, **wrong})[0] == 403, wrong
    assert page.ask("/form/right", method="POST", **good)[0] == 200
    assert page.posted == ["right"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_get_and_post_is_answered(page, method):
    assert page.ask("/form/a", method=method)[0] == 405
    assert page.ask("/form/a")[0] == 405, "nothing changes by GET"
    assert page.posted == []


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_beyond_this_machine_a_page_without_a_token_is_refused(address):
    with pytest.raises(SetupError, match=r"^--web: cannot listen on .*is not on this machine") as refused:
        WebPort(address, package=PACKAGE)
    assert "--federation and --web-token" in refused.value.remedy


def test_a_token_is_shown_over_tls_only(tmp_path):
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    with pytest.raises(SetupError, match="--web-token needs --federation"):
        WebPort("127.0.0.1:0", package=PACKAGE, token_file=tmp_path / "token")


@pytest.mark.parametrize("content", ["short", "two words of some length", "", "ä" * 20])
def test_a_bad_token_is_refused(tmp_path, content):
    given = {"package": PACKAGE, "token_file": tmp_path / "token", "secure": ssl.create_default_context}
    (tmp_path / "token").write_text(content, encoding="utf-8")
    with pytest.raises(SetupError, match="one word of at least 16 ASCII"):
        WebPort("127.0.0.1:0", **given)
    (tmp_path / "token").unlink()
    with pytest.raises(SetupError, match=r"--web-token: .* cannot be read"):
        WebPort("127.0.0.1:0", **given)


@pytest.fixture
def guarded(tmp_path: Path):
    federation = make_federation(tmp_path / "lab")
    (tmp_path / "token").write_text(TOKEN + "\n", encoding="utf-8")
    with Page("0.0.0.0:0", token_file=tmp_path / "token", secure=federation.server_tls()) as page:
        yield page, ssl.create_default_context(cafile=federation.folder / "ca.pem")


def test_with_a_token_a_browser_logs_in_and_a_program_bears_it(guarded):
    page, context = guarded
    ask = partial(page.ask, context=context)
    host = f"127.0.0.1:{page.port.port}"
    assert ask("/events")[0] == 401
    assert ask("/static/dom.js", Authorization="Bearer " + TOKEN[:-1])[0] == 401
    assert ask("/static/dom.js", Authorization="Bearer " + TOKEN)[0] == 200
    status, headers, _ = ask("/", Accept="text/html")
    assert (status, headers["Location"]) == (303, "/login")
    status, headers, _ = ask("/login")
    assert (status, headers["Content-Security-Policy"]) == (200, LOGIN_POLICY)
    assert headers["Referrer-Policy"] == "same-origin", "or browsers say that the form comes from nowhere"
    assert ask("/static/page.css")[0] == 200, "the form has its style"

    form = {"method": "POST", "Origin": f"https://{host}", "Host": host}
    status, _, body = ask("/login", body="token=guess", **form)
    assert status == 403
    assert b"not a token" in body
    assert ask("/login", body=f"token={TOKEN}", **{**form, "Origin": "https://evil.example"})[0] == 403
    status, headers, _ = ask("/login", body=f"token={TOKEN}", **form)
    cookie = headers["Set-Cookie"]
    assert status == 303
    for part in ("__Host-", "HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert part in cookie
    assert TOKEN not in cookie
    kept = cookie.partition(";")[0]
    assert ask("/static/dom.js", Cookie=kept)[0] == 200
    assert ask("/static/dom.js", Cookie=kept[:-1])[0] == 401


def test_a_viewer_gets_what_is_there_and_then_what_changes(page):
    page.publisher.show("now", lambda: {"round": 1, "h": float("nan")})
    page.publisher.add("log", "first <b>")
    connection = viewer(page)
    file = connection.makefile("rb")
    heard = []

    def read() -> None:
        name = ""
        for line in file:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                heard.append((name, json.loads(line[6:])))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    until(lambda: len(heard) >= 2, "the whole")
    assert dict(heard) == {"now": {"round": 1, "h": None}, "log": {"anew": True, "items": ["first <b>"]}}
    for k in range(2, 50):
        page.publisher.show("now", lambda k=k: {"round": k})
    page.publisher.add("log", "second")
    until(lambda: ("now", {"round": 49}) in heard, "the newest")
    until(lambda: ("log", {"anew": False, "items": ["second"]}) in heard, "the new line")
    assert len(heard) < 12, "what is replaced at once is sent at most a few times a second"
    connection.shutdown(socket.SHUT_RDWR)
    until(lambda: page.port.n_viewers == 0, "the viewer is gone")
    reader.join(_LONG_S)
    connection.close()


def test_nothing_is_made_while_nobody_looks(page):
    made = []
    for _ in range(100):
        page.publisher.show("now", lambda: made.append(1))
    assert made == []


def test_a_part_that_cannot_be_made_is_left_out(page, caplog):
    page.publisher.show("bad", lambda: 1 / 0)
    page.publisher.show("good", lambda: "here")
    assert page.publisher.snapshot() == b'{"log":{"anew":true,"items":[]},"good":"here"}'
    assert "cannot be made" in caplog.text


def test_viewers_that_read_nothing_never_hold_up_who_publishes(monkeypatch):
    """Publishing would otherwise wait for as long as a viewer is kept: this test would not end."""
    monkeypatch.setattr(connections, "PATIENCE_S", 1e6)
    with Page() as page:
        hanging = [viewer(page) for _ in range(50)]
        until(lambda: page.port.n_viewers == 50, "50 viewers")
        for k in range(200):  # 200 x 100 kB: more than what lies between can hold
            page.publisher.show("now", lambda k=k: {"round": k, "much": "x" * 100_000})
            page.ask("/static/page.css")  # the other thread has had its turn
        assert page.port.n_viewers == 50
        for one in hanging:
            one.close()


@pytest.mark.long
def test_viewers_that_read_nothing_are_cut_off(monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE_S", 0.5)
    with Page() as page:
        hanging = [viewer(page) for _ in range(5)]
        until(lambda: page.port.n_viewers == 5, "5 viewers")
        until(lambda: page.port.n_viewers == 0 or page.publisher.show("now", lambda: "x" * 1_000_000), "cut off")
        assert page.ask("/static/page.css")[0] == 200
        for one in hanging:
            one.close()


def test_a_request_that_comes_too_slowly_is_cut_off(monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE_S", 0.5)
    with Page() as page, socket.create_connection(("127.0.0.1", page.port.port), timeout=_LONG_S) as slow:
        slow.sendall(b"GET /static/page.css HTTP/1.1\r\n")
        ended = False
        for _ in range(200):
            try:
                slow.sendall(b"X-Slow: 1\r\n")
                time.sleep(0.1)
            except OSError:
                ended = True
                break
        assert ended


def test_more_viewers_than_there_is_room_for_are_told_so(page, monkeypatch):
    monkeypatch.setattr(stream, "MOST_VIEWERS", 1)
    first = viewer(page)
    until(lambda: page.port.n_viewers == 1, "the first viewer")
    assert page.ask("/events")[0] == 503
    first.close()


def test_more_connections_than_there_is_room_for_wait_and_are_answered_then(monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE_S", 1.0)
    with Page(at_once=2) as page:
        idle = [socket.create_connection(("127.0.0.1", page.port.port), timeout=_LONG_S) for _ in range(2)]
        assert page.ask("/static/page.css")[0] == 200, "idle ones are cut off meanwhile"
        for one in idle:
            one.close()


def test_a_port_ends_while_browsers_look():
    page = Page().__enter__()
    hanging = [viewer(page) for _ in range(5)]
    until(lambda: page.port.n_viewers == 5, "5 viewers")
    page.port.__exit__(None, None, None)
    for one in hanging:
        with one.makefile("rb") as file:
            assert file.read().endswith(b"0\r\n\r\n"), "the stream is ended in order"
        one.close()


def test_a_long_list_loses_its_oldest_and_a_thinned_one_keeps_its_beginning():
    publisher = SnapshotPublisher({"log": 10, "rounds": 10}, thinned=("rounds",))
    for k in range(25):
        publisher.add("log", k)
        publisher.add("rounds", k)
    content = json.loads(publisher.snapshot())
    assert content["log"]["items"][-5:] == [20, 21, 22, 23, 24]
    assert len(content["log"]["items"]) <= 10
    rounds = content["rounds"]["items"]
    assert (rounds[0], rounds[-1], len(rounds) <= 10) == (0, 24, True)
    assert rounds == sorted(rounds)
