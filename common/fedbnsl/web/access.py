"""Who may ask a page for what: the check before every answer, and the headers of every answer.

On loopback, without a token, the name that the browser asked for must be one of this machine: a page of a stranger
whose name was made to point here (DNS rebinding) reads nothing. With a token, it is shown once to the form of /login,
or as bearer token by a program. Nothing changes by GET; what is posted must come from the page itself.
"""

import asyncio
import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""Of all answers but those that bring a stricter one."""

LOGIN_POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

_HEADERS = {
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

FORM_TOKEN = "X-Form-Token"  # noqa: S105  # the name of a header


class Access:
    """The application behind the check: a viewer must show the token; None, on loopback alone: nothing."""

    def __init__(self, app: ASGIApp, *, token: bytes | None, login_page: str) -> None:
        self._app = app
        self._token = token
        self._login_page = login_page
        self.form_token = secrets.token_urlsafe(24)  # a page of this port holds it, and sends it with each form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers.setdefault("Content-Security-Policy", POLICY)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = await self._refusal(Request(scope, receive))
        await (refusal or self._app)(scope, receive, guarded)

    async def _refusal(self, request: Request) -> Response | None:
        """Why the application is not asked; None: it is."""
        host = request.headers.get("host", "")
        if self._token is None and _name(host) not in _HERE:
            return PlainTextResponse("this page is for the browser of its own machine: http://127.0.0.1", 421)
        if request.method == "POST":
            if not _comes_from(request.headers, host):
                return PlainTextResponse("posted from another page", 403)
        elif request.method not in ("GET", "HEAD"):
            return PlainTextResponse("expected GET", 405, {"Allow": "GET, HEAD, POST"})
        if self._token is None:
            return None
        if request.url.path == "/login":
            return await self._login(request, self._token)
        if request.url.path == _LOGIN_STYLE or self._is_known(request, self._token):
            return None
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return PlainTextResponse("a token is needed", 401, {"WWW-Authenticate": "Bearer"})

    async def _login(self, request: Request, token: bytes) -> Response:
        policy = {"Content-Security-Policy": LOGIN_POLICY}
        if request.method != "POST":
            return HTMLResponse(self._login_page.replace("{{ note }}", ""), headers=policy)
        shown = (parse_qs((await _body(request)).decode("latin-1")).get("token") or [""])[0]
        if not _same(shown.strip(), token):
            await asyncio.sleep(_AFTER_A_WRONG_TOKEN_S)
            return HTMLResponse(self._login_page.replace("{{ note }}", "That is not the token."), 403, headers=policy)
        reply = RedirectResponse("/", 303)
        reply.set_cookie(_cookie(request), _pass(token), path="/", secure=True, httponly=True, samesite="strict")
        return reply

    def _is_known(self, request: Request, token: bytes) -> bool:
        # In constant time, here and below: how long a comparison takes tells nothing of the token.
        if _same(request.headers.get("authorization", ""), b"Bearer " + token):
            return True
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return False
        kept = cookies.get(_cookie(request))
        return kept is not None and _same(kept.value, _pass(token).encode())

    def holds_form_token(self, request: Request) -> bool:
        """Whether a posted request comes from a page of this port, which alone can read the token."""
        return _same(request.headers.get(FORM_TOKEN, ""), self.form_token.encode())


def _same(shown: str, expected: bytes) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "replace"), expected)


def _comes_from(headers: Headers, host: str) -> bool:
    """Whether a browser says that a request was made by a page of this very host and port."""
    site = headers.get("sec-fetch-site", "same-origin")
    return bool(host) and urlsplit(headers.get("origin", "")).netloc == host and site in ("same-origin", "none")


def _pass(token: bytes) -> str:
    """What the cookie holds: it opens this page, and tells nothing of the token."""
    return hmac.new(token, b"fedbnsl page", hashlib.sha256).hexdigest()


def _cookie(request: Request) -> str:
    """Browsers send the cookies of a host to all of its ports: each port has its own."""
    return f"__Host-fedbnsl-{request.url.port or 443}"


def _name(host: str) -> str:
    """The host without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def _body(request: Request) -> bytes:
    whole = b""
    async for part in request.stream():
        whole += part
        if len(whole) > _MOST_FORM_BYTES:
            return b""
    return whole
