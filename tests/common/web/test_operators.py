"""Operators of a page: what is kept of a token, what a role allows, and what the security log says of it."""

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route

from command_line import Outcome
from fedbnsl.errors import ResultError, SetupError
from fedbnsl.events.security_log import NAME, lines
from fedbnsl.web.operators import FILE, PROXY, Operators, word_of
from fedbnsl.web.port import WebPort
from fedbnsl.web.publisher import SnapshotPublisher
from fedbnsl.web.roles import Roles
from fedbnsl.web.stream import StreamedPublisher
from federation_folder import make_federation
from http_asks import Reply, ask

ROLES = Roles(("view", "run", "administer"), {"start": "run", "stop": "administer"})
ONE_TOKEN = "a-token-that-has-no-name"


def test_a_role_may_do_what_those_before_it_may() -> None:
    assert {(role, action) for role in ROLES.names for action in ROLES.needs if ROLES.allow(role, action)} == {
        ("run", "start"),
        ("administer", "start"),
        ("administer", "stop"),
    }
    with pytest.raises(KeyError):
        ROLES.allow("administer", "what is in no table")
    assert ROLES.in_words().splitlines() == [
        "view        look at everything that is shown",
        "run         start",
        "administer  stop",
    ]


def test_a_token_is_kept_nowhere_and_what_is_kept_opens_nothing(tmp_path: Path) -> None:
    operators = Operators(ROLES, folder=tmp_path)
    token = operators.add("anna", "run")
    kept = (tmp_path / FILE).read_text(encoding="utf-8")
    assert token not in kept
    assert word_of(token.encode()) not in kept
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0, "for its owner alone"
    anna = operators.named()["anna"]
    assert operators.holder(word_of(token.encode())) == anna
    assert operators.holder(anna.digest) is None
    assert operators.holder(word_of(anna.digest.encode())) is None
    assert operators.holder("") is None
    assert len({operators.add(f"one-{k}", "view") for k in range(20)}) == 20


def test_what_commands_change_counts_at_once_elsewhere(tmp_path: Path) -> None:
    operators, elsewhere = Operators(ROLES, folder=tmp_path), Operators(ROLES, folder=tmp_path)
    word = word_of(operators.add("anna", "run").encode())
    anna = elsewhere.holder(word)
    assert anna is not None
    assert elsewhere.still_has(anna)
    operators.remove("anna")
    assert elsewhere.holder(word) is None
    assert not elsewhere.still_has(anna)
    operators.add("anna", "run")
    assert not elsewhere.still_has(anna), "another token under the same name"


@pytest.mark.parametrize("content", ["[anna", "anna = 3", '[anna]\nrole = "king"\n', '[anna]\nrole="view"\nx=1\n'])
def test_9_a_damaged_file_lets_nobody_in(tmp_path: Path, content: str) -> None:
    operators = Operators(ROLES, folder=tmp_path, token=ONE_TOKEN.encode())
    operators.add("bert", "view")
    (tmp_path / FILE).write_text(content, encoding="utf-8")
    with pytest.raises(ResultError, match=r"operators\.toml cannot be read"):
        operators.holder(word_of(ONE_TOKEN.encode()))


def test_2_a_name_is_of_one_operator(tmp_path: Path) -> None:
    operators = Operators(ROLES, folder=tmp_path)
    operators.add("anna", "view")
    for name in ("anna", "", "a b", "../up", "-x"):
        with pytest.raises(SetupError):
            operators.add(name, "view")
    with pytest.raises(SetupError, match="there are: anna"):
        operators.remove("bert")
    assert list(operators.named()) == ["anna"]


# ---- a page with operators ------------------------------------------------------------------------------------------


class Page:
    """A page over TLS with two actions, and what was done."""

    def __init__(self, folder: Path) -> None:
        federation = make_federation(folder)
        self.folder, self.done = folder, list[str]()
        self.operators = Operators(ROLES, folder=folder)
        self.tokens = {role: self.operators.add(f"the-{role}", role) for role in ROLES.names}
        (folder / "token").write_text(ONE_TOKEN, encoding="utf-8")
        self.port = WebPort(
            "127.0.0.1:0",
            operators=folder,
            token_file=folder / "token",
            roles=ROLES,
            log=folder / NAME,
            secure=federation.server_tls(),
        )
        self.publisher = SnapshotPublisher()
        self.publisher.show("now", lambda: 1)
        self.port.add_routes([Route("/events", StreamedPublisher(self.port.streams, lambda _: self.publisher))])
        for action in ROLES.needs:
            self.port.add_action(action, f"/{{name}}/{action}", self._act)
        self.context = ssl.create_default_context(cafile=folder / "ca.pem")
        self.ask = partial(ask, self.port.port, context=self.context)

    async def _act(self, request) -> JSONResponse:
        self.done.append(request.url.path)
        return JSONResponse({}, 409 if request.path_params["name"] == "impossible" else 200)

    def act(self, path: str, token: str) -> Reply:
        return self.ask(path, method="POST", Authorization=f"Bearer {token}")

    def logged(self) -> list[dict]:
        self.port.access.close()
        return [line.entry for line in lines(self.folder / NAME)]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    page = Page(tmp_path / "lab")
    with page.port:
        yield page


def test_each_action_is_for_its_roles_alone_and_logged_under_the_name(page: Page) -> None:
    for role, token in page.tokens.items():
        assert page.ask("/static/dom.js", Authorization=f"Bearer {token}").status == 200
        for action, least in ROLES.needs.items():
            reply = page.act(f"/mine/{action}", token)
            assert (reply.status == 200) == ROLES.allow(role, action), (role, action)
            if reply.status != 200:
                assert reply.status == 403
                assert reply.body.decode() == f"the-{role} may not {action}: the role is {role}, it takes {least}"
    assert page.done == ["/mine/start", "/mine/start", "/mine/stop"]
    entries = page.logged()
    done = [(one["operator"], one["action"], one["name"]) for one in entries if one["event"] == "operator"]
    assert done == [
        ("the-run", "start", "mine"),
        ("the-administer", "start", "mine"),
        ("the-administer", "stop", "mine"),
    ]
    refused = {(one["operator"], one["action"]) for one in entries if one["event"] == "refused"}
    assert refused == {("the-view", "start"), ("the-view", "stop"), ("the-run", "stop")}


def test_the_one_token_without_a_name_looks_as_before_and_changes_nothing(page: Page) -> None:
    assert page.ask("/static/dom.js", Authorization=f"Bearer {ONE_TOKEN}").status == 200
    reply = page.act("/mine/start", ONE_TOKEN)
    assert (reply.status, page.done) == (403, [])
    assert b"whoever has no name here may not start" in reply.body


def test_a_wrong_token_is_refused_and_counted_and_in_no_log(page: Page) -> None:
    wrong = "wrong-" + page.tokens["view"][6:]
    for _ in range(3):
        assert page.act("/mine/start", wrong).status == 401
    assert page.ask("/login", method="POST", body=f"token={wrong}", Origin=page.port.url[:-1]).status == 403
    refused = [one for one in page.logged() if one["event"] == "refused"]
    assert [one["why"] for one in refused] == ["wrong token"] * 2
    assert [one.get("times", 1) for one in refused] == [1, 3]
    assert {one["address"] for one in refused} == {"127.0.0.1"}
    text = (page.folder / NAME).read_text(encoding="utf-8")
    assert not [token for token in (wrong, ONE_TOKEN, *page.tokens.values()) if token in text]


def test_what_was_asked_for_and_not_done_is_logged_too(page: Page) -> None:
    assert page.act("/impossible/start", page.tokens["run"]).status == 409
    entries = [(one["event"], one["operator"]) for one in page.logged() if one.get("action")]
    assert entries == [("operator", "the-run"), ("not done", "the-run")]


def test_a_browser_acts_under_the_name_that_it_logged_in_with(page: Page) -> None:
    origin = page.port.url[:-1]
    form = {"method": "POST", "Origin": origin, "Host": origin.removeprefix("https://")}
    entered = page.ask("/login", body=f"token={page.tokens['run']}", **form)
    cookie = entered.headers["Set-Cookie"].partition(";")[0]
    act = partial(page.ask, "/mine/start", Cookie=cookie, **form)
    assert act().status == 403, "not from the page"
    assert act(X_Form_Token=page.port.access.form_token).status == 200
    assert [one["operator"] for one in page.logged() if one["event"] == "operator"] == ["the-run"]
    page.operators.remove("the-run")
    assert act(X_Form_Token=page.port.access.form_token).status == 401
    assert page.done == ["/mine/start"]


def test_who_is_removed_sees_nothing_more_on_a_page_that_is_open(page: Page) -> None:
    raw = socket.create_connection(("127.0.0.1", page.port.port), timeout=20)
    with page.context.wrap_socket(raw, server_hostname="127.0.0.1") as viewer:
        viewer.sendall(
            f"GET /events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {page.tokens['view']}\r\n\r\n".encode()
        )
        file = viewer.makefile("rb")
        while not file.readline().startswith(b"data: 1"):
            continue
        page.operators.remove("the-view")
        page.publisher.show("now", lambda: "secret")
        for line in file:  # to the end of a chunked answer
            assert b"secret" not in line
            if line == b"0\r\n":
                break


def test_a_proxy_says_who_asks_and_asks_for_nothing_itself(page: Page) -> None:
    proxy = {"Authorization": f"Bearer {page.operators.add('hub-proxy', PROXY)}"}
    assert page.operators.add("ada@example.org", "administer", with_token=False) == ""
    origin = page.port.url[:-1]
    form = {"method": "POST", "Origin": origin, "Host": origin.removeprefix("https://")}
    ada = {**proxy, "X_Forwarded_User": "ada@example.org", "X_Form_Token": page.port.access.form_token}
    assert page.ask("/static/dom.js", **ada).status == 200
    assert page.ask("/mine/stop", **{**form, **ada}).status == 200
    for wrong in ({"X_Form_Token": ""}, {"Origin": "https://evil.example"}, {"Origin": ""}):
        assert page.ask("/mine/stop", **{**form, **ada, **wrong}).status == 403, wrong
    for user in ("", "nobody@example.org", "hub-proxy"):
        reply = page.ask("/static/dom.js", **{**ada, "X_Forwarded_User": user})
        assert (reply.status, b"is no operator here" in reply.body) == (403, True), user
    assert page.ask("/static/dom.js", X_Forwarded_User="ada@example.org").status == 401, "a name is no token"
    named_by_another = {"Authorization": f"Bearer {page.tokens['view']}", "X_Forwarded_User": "ada@example.org"}
    assert page.ask("/mine/stop", method="POST", **named_by_another).status == 403
    assert page.done == ["/mine/stop"]
    entries = page.logged()
    assert [one["operator"] for one in entries if one["event"] == "operator"] == ["ada@example.org"]
    assert "no operator" in [one.get("why") for one in entries]


def test_a_file_that_cannot_be_read_lets_nobody_in(page: Page) -> None:
    (page.folder / FILE).write_text("[", encoding="utf-8")
    assert page.ask("/events", Authorization=f"Bearer {page.tokens['view']}").status == 503
    assert page.act("/mine/start", page.tokens["run"]).status == 503
    assert page.done == []


def test_what_changes_something_cannot_be_added_beside_the_table(page: Page) -> None:
    async def change(request) -> JSONResponse:
        return JSONResponse({})

    with pytest.raises(ValueError, match="/x changes something"):
        page.port.add_routes([Route("/x", change, methods=["POST"])])
    with pytest.raises(KeyError):
        page.port.add_action("what is in no table", "/x", change)


def test_2_operators_are_asked_for_tokens_over_tls_only(tmp_path: Path) -> None:
    Operators(ROLES, folder=tmp_path).add("anna", "view")
    with pytest.raises(SetupError, match=r"--web with .*operators\.toml needs --federation"):
        WebPort("127.0.0.1:0", operators=tmp_path, roles=ROLES)


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "sign", "role"),
    [("coordinator", "federation.toml", "administer"), ("participant", "policy.toml", "approve")],
)
def test_the_commands_add_list_and_remove(
    tmp_path: Path, fedbnsl: Callable[..., Outcome], side: str, sign: str, role: str
) -> None:
    refused = fedbnsl(side, "operators", "list", tmp_path)
    assert (refused.code, f"has no {sign}" in refused.err) == (2, True)
    (tmp_path / sign).touch()
    assert "no operators; add one" in fedbnsl(side, "operators", "list", tmp_path).out
    added = fedbnsl(side, "operators", "add", tmp_path, "anna", "--role", role)
    assert added.code == 0, added.err
    token = added.out.strip()
    assert len(token) >= 43
    assert token not in added.err
    assert fedbnsl(side, "operators", "add", tmp_path, "bert", "--role=king").code == 2
    assert fedbnsl(side, "operators", "list", tmp_path).out.startswith(f"anna  {role}")
    told = json.loads(fedbnsl(side, "operators", "list", tmp_path, "--json").out)
    assert [(one["name"], one["role"]) for one in told] == [("anna", role)]
    without = fedbnsl(side, "operators", "add", tmp_path, "carla", "--role=view", "--no-token")
    assert (without.code, without.out) == (0, "")
    file = tmp_path / "dora.token"
    kept = fedbnsl(side, "operators", "add", tmp_path, "dora", f"--role={role}", f"--out={file}")
    assert (kept.code, kept.out, file.stat().st_mode & 0o777) == (0, "", 0o600)
    written = file.read_text(encoding="utf-8")
    assert len(written.strip()) >= 43
    for name, to in (("eva", file), ("dora", tmp_path / "again.token"), ("eva", tmp_path / "none" / "eva.token")):
        assert fedbnsl(side, "operators", "add", tmp_path, name, f"--role={role}", f"--out={to}").code != 0
    assert file.read_text(encoding="utf-8") == written, "never written over"
    assert not [*tmp_path.glob("again*")], "no file without a token"
    assert '"eva"' not in fedbnsl(side, "operators", "list", tmp_path, "--json").out
    for name in ("anna", "carla", "dora"):
        assert fedbnsl(side, "operators", "remove", tmp_path, name).out == f"removed {name}\n"
    log = (tmp_path / NAME).read_text(encoding="utf-8")
    assert [one.entry["event"] for one in lines(tmp_path / NAME)] == ["operator added"] * 3 + ["operator removed"] * 3
    assert token not in log
