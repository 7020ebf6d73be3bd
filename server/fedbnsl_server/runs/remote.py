"""The runs of a coordinator on another machine, asked over the HTTPS port of its page, with an operator's token."""

import hashlib
import json
import shlex
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from fedbnsl.errors import (
    FedbnslError,
    IdentityError,
    PlanError,
    ProtocolError,
    ResultError,
    SetupError,
    UnreachableError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.web.exposure import read_token
from fedbnsl_server.runs.folder import Told

_PATIENCE_S = 30.0
_ERRORS = {one.exit_code: one for one in (SetupError, PlanError, ProtocolError, UnreachableError, ResultError)}
_BY_ROLE = (
    "Ask whoever administers the coordinator: fedbnsl coordinator operators list FOLDER; another role is given by "
    "operators remove, then add."
)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is shown to the address that was named, and to no other."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class RemoteRuns:
    """See `fedbnsl_server.runs.folder.Runs`.

    Parameters
    ----------
    url
        https://HOST:PORT of the page.
    token_file
        Holds the operator's token.
    ca
        PEM file with the authority that the page's certificate is under, such as the federation's ca.pem; None: one of
        those that this machine trusts.

    Raises SetupError if one of them cannot be used. Each call raises UnreachableError if the coordinator does not
    answer, IdentityError if it does not know the token or the role does not allow the call, and what it raised there.
    """

    def __init__(self, url: str, *, token_file: Path, ca: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
            raise SetupError(f"--at {url}: expected https://HOST:PORT", remedy="As `coordinator runs serve` prints it.")
        self._url = f"https://{parts.netloc}"
        found_by = ["--at", self._url, "--token-file", str(token_file), *(["--ca", str(ca)] if ca is not None else [])]
        self._place = shlex.join(found_by)
        self._token = read_token(token_file, option="--token-file").decode()
        try:
            context = ssl.create_default_context(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            raise SetupError(f"--ca: {ca} holds no certificate, PEM: {error}") from None
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())

    @property
    def place(self) -> str:
        """See `Runs`."""
        return self._place

    def all(self) -> list[Told]:
        """See `Runs`."""
        found: list[Told] = self._json("/api/runs")
        return found

    def one(self, name: str) -> Told:
        """See `Runs`."""
        told: Told = self._json(_path(name))
        return told

    def start(self, plan: Plan, name: str, study: str = "") -> Told:
        """See `Runs`. Raises ProtocolError if the coordinator's version reads another plan."""
        content = {"plan": plan.to_toml(), "plan_digest": plan.digest().hex(), "study": study}
        told: Told = self._json(_path(name, "start"), content)
        return told

    def want(self, name: str, wanted: str) -> Told:
        """See `Runs`."""
        told: Told = self._json(_path(name, {"run": "resume"}.get(wanted, wanted)), {})
        return told

    def eject(self, name: str, site: str, from_round: int | None) -> str | None:
        """See `Runs`."""
        told = self._json(_path(name, "sites", site, "eject"), {"from_round": from_round})
        answer: str | None = told["answer"]
        return answer

    def files(self, name: str) -> Mapping[str, str]:
        """See `Runs`."""
        found: Mapping[str, str] = self._json(_path(name, "files"))
        return found

    def file(self, name: str, file: str) -> bytes:
        """See `Runs`. Raises ResultError if it does not arrive whole."""
        return self._ask(_path(name, "files", file))

    def _json(self, path: str, content: Mapping[str, Any] | None = None) -> Any:
        reply = self._ask(path, None if content is None else json.dumps(content).encode())
        try:
            return json.loads(reply)
        except ValueError:
            raise ProtocolError(
                f"{self._url}{path} does not answer as a coordinator does", remedy="Check the address and the versions."
            ) from None

    def _ask(self, path: str, content: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data=content, headers=headers)  # noqa: S310 - https alone
        try:
            with self._opener.open(request, timeout=_PATIENCE_S) as reply:
                body: bytes = reply.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, HTTPException) as error:  # URLError is an OSError
            why = getattr(error, "reason", error)
            if isinstance(why, ssl.SSLCertVerificationError):
                raise IdentityError(
                    f"{self._url} shows a certificate that is not trusted here: {why.verify_message}",
                    remedy="Name the authority that it is under with --ca: the federation's ca.pem.",
                ) from None
            raise UnreachableError(
                f"{self._url} does not answer: {why}",
                remedy="Check the address, and that `coordinator runs serve --web` runs there.",
            ) from None

    def _refused(self, error: urllib.error.HTTPError) -> FedbnslError:
        text = error.read().decode("utf-8", "replace")[:2000].strip()
        if error.code == 401:
            return IdentityError(f"{self._url}: {text}", remedy=_BY_ROLE)
        if error.code == 403:
            return IdentityError(text, remedy=_BY_ROLE)
        try:
            told = json.loads(text)
            kind = _ERRORS.get(told["exit_code"], ResultError)
            return kind(str(told["error"]), remedy=str(told["remedy"]))
        except (ValueError, KeyError, TypeError):
            return ProtocolError(f"{self._url}{urlsplit(error.url or '').path}: {error.code}: {text or error.reason}")


def _path(name: str, *more: str) -> str:
    for part in (name, *more):
        if not part or "/" in part:
            raise SetupError(f"{part!r} cannot be the name of a run, a site or a file there")
    return "/".join(["/api/runs", *(quote(part, safe="") for part in (name, *more))])


def is_whole(content: bytes, digest: str) -> bool:
    """Whether a file is the one that was listed."""
    return hashlib.sha256(content).hexdigest() == digest
