"""Who may ask a page for what: the check before every answer, and the headers of every answer.

On loopback, without a token, the name that the browser asked for must be one of this machine: a page of a stranger
whose name was made to point here (DNS rebinding) reads nothing. Operators show their token once to the form of /login,
or with each request as bearer token of a program. Nothing changes by GET; what is posted must come from the page itself
or bear the token of a program, which no page of a stranger can send.

Whatever changes something is an `action`: it is done only for operators whose role allows it by the table of `Roles`,
and entered in the security log with their name before it is done.
"""

import asyncio
import hmac
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedbnsl.errors import ResultError
from fedbnsl.events.security_log import SecurityLog
from fedbnsl.web.operators import PROXY, Operator, Operators, word_of
from fedbnsl.web.roles import VIEWERS, Roles

_log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""Of all answers but those that bring a stricter one."""

LOGIN_POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HERE = ("127.0.0.1", "localhost", "::1")
_LOGIN_STYLE = "/static/page.css"  # anybody may fetch it: the form that asks for the token needs it
_MOST_FORM_BYTES = 4096
_AFTER_A_WRONG_TOKEN_S = 0.5

_BEARER = "Bearer "
_ASKS = "fedbnsl.asks"  # in the scope of a request: who asks

USER = "X-Forwarded-User"
"""The header by which a proxy says which operator asks."""

FORM_TOKEN = "X-Form-Token"  # noqa: S105  # the name of a header


@dataclass(frozen=True)
class _Asks:
    """Who asks; a program shows a token with each request, which no page of a stranger can make a browser do."""

    operator: Operator
    is_program: bool = False


class Access:
    """The application behind the check.

    Parameters
    ----------
    operators
        Who may look, by their tokens; None, on loopback alone: whoever uses this machine.
    roles
        What may be changed, and by whom.
    login_page
        Asks for a token; has a place for a note.
    log
        Gets what operators change, and who was refused; None: nobody keeps it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        operators: Operators | None = None,
        roles: Roles = VIEWERS,
        login_page: str,
        log: SecurityLog | None = None,
    ) -> None:
        self._app = app
        self._operators, self._roles = operators, roles
        self._login_page = login_page
        self._security_log, self._writing = log, threading.Lock()
        self.form_token = secrets.token_urlsafe(24)  # a page of this port holds it, and sends it with each form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        request, is_cut = Request(scope, receive), False

        async def guarded(message: Message) -> None:
            nonlocal is_cut
            if is_cut:
                return
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            elif message.get("more_body") and not self._still_knows(scope.get(_ASKS)):
                message, is_cut = {"type": "http.response.body", "body": b""}, True  # removed while they look
            await send(message)

        await (await self._refusal(request) or self._app)(scope, receive, guarded)

    async def _refusal(self, request: Request) -> Response | None:
        """Why the application is not asked; None: it is."""
        host, is_post = request.headers.get("host", ""), request.method == "POST"
        if self._operators is None and _name(host) not in _HERE:
            return PlainTextResponse("this page is for the browser of its own machine: http://127.0.0.1", 421)
        if not is_post and request.method not in ("GET", "HEAD"):
            return PlainTextResponse("expected GET", 405, {"Allow": "GET, HEAD, POST"})
        is_foreign = is_post and not _comes_from(request.headers, host)
        foreign = PlainTextResponse("posted from another page", 403)
        if self._operators is None:
            asks: _Asks | None = _Asks(Operator("", self._roles.unnamed))
        else:
            try:
                if request.url.path == "/login":
                    return foreign if is_foreign else await self._login(request, self._operators)
                asks = self._asking(request, self._operators)
            except ResultError as error:
                _log.warning("nobody is let in: %s", error)
                return PlainTextResponse("the operators cannot be read here; see the log of this process", 503)
        if asks is None:
            return None if request.url.path == _LOGIN_STYLE and not is_post else await self._who_are_you(request)
        if asks.operator.role not in self._roles.names:
            name = asks.operator.name or "whoever has no name"
            await self._note(self._count, "refused", why="no operator", operator=name, address=_address(request))
            return PlainTextResponse(f"{name} is no operator here", 403)
        if is_foreign and not asks.is_program:
            return foreign
        request.scope[_ASKS] = asks
        return None

    async def _who_are_you(self, request: Request) -> Response:
        bearer = {"WWW-Authenticate": "Bearer"}
        if _bearer(request):
            await self._refuse_token(request)
            return PlainTextResponse("this token is not known here", 401, bearer)
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return PlainTextResponse("a token is needed", 401, bearer)

    async def _login(self, request: Request, operators: Operators) -> Response:
        # Under `no-referrer`, a browser says of its form that it comes from "null".
        policy = {"Content-Security-Policy": LOGIN_POLICY, "Referrer-Policy": "same-origin"}
        if request.method != "POST":
            return HTMLResponse(self._login_page.replace("{{ note }}", ""), headers=policy)
        shown = (parse_qs((await body_of(request, _MOST_FORM_BYTES)).decode("latin-1")).get("token") or [""])[0]
        word = word_of(shown.strip().encode("latin-1"))
        if operators.holder(word) is None:
            await self._refuse_token(request)
            return HTMLResponse(self._login_page.replace("{{ note }}", "That is not a token."), 403, headers=policy)
        reply = RedirectResponse("/", 303)
        reply.set_cookie(_cookie(request), word, path="/", secure=True, httponly=True, samesite="strict")
        return reply

    async def _refuse_token(self, request: Request) -> None:
        await self._note(self._count, "refused", why="wrong token", address=_address(request))
        await asyncio.sleep(_AFTER_A_WRONG_TOKEN_S)

    def _asking(self, request: Request, operators: Operators) -> "_Asks | None":
        """Whoever shows a token, or the cookie of one, or is named by a proxy that shows its own token."""
        token = _bearer(request)
        if token:
            holder = operators.holder(word_of(token.encode("utf-8", "replace")))
            if holder is None or holder.role != PROXY:
                return None if holder is None else _Asks(holder, is_program=True)
            # Behind the proxy are browsers, which the page of a stranger may make ask it: no program.
            name = request.headers.get(USER, "")
            return _Asks(operators.named().get(name, Operator(name, "")))
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return None
        kept = cookies.get(_cookie(request))
        known = None if kept is None else operators.holder(kept.value)
        return None if known is None else _Asks(known)

    def _still_knows(self, asks: "_Asks | None") -> bool:
        return asks is None or self._operators is None or self._operators.still_has(asks.operator)

    # ---- what changes something --------------------------------------------------------------------------------------

    def action(self, action: str, endpoint: Endpoint) -> Endpoint:
        """The endpoint for those who may do this; the only way to a route that changes something.

        The parameters of its path go into the security log. Raises KeyError if the table of roles has no such action.
        """
        least = self._roles.needs[action]

        async def checked(request: Request) -> Response:
            asks: _Asks = request.scope[_ASKS]
            operator = asks.operator
            if not (asks.is_program or self.holds_form_token(request)):
                text = "posted from another page, or the process is another one now: load it again"
                return PlainTextResponse(text, 403)
            about = {"action": action, "operator": operator.name or "(no name)", "address": _address(request)}
            if not self.allows(request, action):
                call = f"{action} ({operator.name})"  # what is counted together
                await self._note(self._count, "refused", why="role", call=call, **about)
                who = operator.name or "whoever has no name here"
                has_role = self._roles.allow(operator.role, action)
                why = "it takes a token" if has_role else f"the role is {operator.role}, it takes {least}"
                return PlainTextResponse(f"{who} may not {action}: {why}", 403)
            about |= request.path_params
            await self._note(self._enter, "operator", **about)
            answer = await endpoint(request)
            if answer.status_code >= 400:
                await self._note(self._enter, "not done", **about)
            return answer

        return checked

    def operator(self, request: Request) -> Operator:
        """Who asks."""
        asks: _Asks = request.scope[_ASKS]
        return asks.operator

    def allows(self, request: Request, action: str) -> bool:
        """Whether whoever asks may do this."""
        shows_none = self._operators is None and action in self._roles.by_token
        return not shows_none and self._roles.allow(self.operator(request).role, action)

    def filled(self, page: str, request: Request, *, acts: bool = True) -> str:
        """A page that acts: with the token of its forms, and the actions that whoever asks for it may do."""
        may = [action for action in self._roles.needs if acts and self.allows(request, action)]
        return page.replace("{{ form_token }}", self.form_token).replace("{{ may }}", ", ".join(may))

    async def _note(self, write: Callable[..., None], event: str, **fields: object) -> None:
        if self._security_log is not None:
            await asyncio.to_thread(write, self._security_log, event, fields)

    def _enter(self, log: SecurityLog, event: str, fields: dict[str, Any]) -> None:
        with self._writing:
            log.enter(event, **fields)

    def _count(self, log: SecurityLog, event: str, fields: dict[str, Any]) -> None:
        with self._writing:
            log.count(event, **fields)
            log.flush()

    def refusals(self) -> Mapping[tuple[str, str], int]:
        """How often somebody was refused, by event and reason; from any thread."""
        return {} if self._security_log is None else self._security_log.totals.copy()

    def close(self) -> None:
        """Write what is left for the security log."""
        if self._security_log is not None:
            with self._writing:
                self._security_log.close()

    def holds_form_token(self, request: Request) -> bool:
        """Whether a posted request comes from a page of this port, which alone can read the token."""
        return _same(request.headers.get(FORM_TOKEN, ""), self.form_token.encode())


def _same(shown: str, expected: bytes) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "replace"), expected)


def _comes_from(headers: Headers, host: str) -> bool:
    """Whether a browser says that a request was made by a page of this very host and port."""
    site = headers.get("sec-fetch-site", "same-origin")
    return bool(host) and urlsplit(headers.get("origin", "")).netloc == host and site in ("same-origin", "none")


def _cookie(request: Request) -> str:
    """Browsers send the cookies of a host to all of its ports: each port has its own."""
    return f"__Host-fedbnsl-{request.url.port or 443}"


def _name(host: str) -> str:
    """The host without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _bearer(request: Request) -> str:
    """The token that a request bears; empty: none."""
    shown = request.headers.get("authorization", "")
    return shown.removeprefix(_BEARER) if shown.startswith(_BEARER) else ""


def _address(request: Request) -> str:
    return "" if request.client is None else request.client.host


async def body_of(request: Request, most: int) -> bytes:
    """What was sent with a request; nothing if there is more of it than so many bytes."""
    whole = bytearray()
    async for part in request.stream():  # to its end, so that the caller hears the answer
        whole += part[: most + 1 - len(whole)]
    return bytes(whole) if len(whole) <= most else b""
