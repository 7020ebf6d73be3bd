"""Operators of a page: who they are, what their role allows, and the tokens that they show.

`operators.toml` in the folder of a federation or of a site has the name and role of each operator, and a digest of the
token, never the token itself: that is shown once, when the operator is added.

    [anna]
    role = "run"
    digest = "9f86d081884c7d65..."
    added = "2026-11-29T22:40:00+00:00"

A token has 256 random bits, so that nobody finds one by trying, and a fast digest is enough. A browser keeps a word
that is made of the token (`word_of`) instead of the token; the digest is of this word, and opens nothing by itself.

Who signs in at an authenticating proxy needs no token: the proxy has one, of the role `proxy`, which may do nothing but
say which operator asks.
"""

import fcntl
import hashlib
import hmac
import re
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.files import durable
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.web.roles import Roles

FILE = "operators.toml"

PROXY = "proxy"
"""The role of an authenticating proxy: it says which operator asks, and does nothing by itself."""

_TOKEN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, '.', '-', '_', '@' or '+', the first a letter or digit"


@dataclass(frozen=True)
class Operator:
    """One who may look, at least. Without a name: whoever shows the one token, or sits at this machine."""

    name: str
    role: str
    digest: str = ""  # of the word of the token
    added: str = ""  # when, ISO 8601, UTC


def word_of(token: bytes) -> str:
    """What a browser keeps in place of a token: it opens a page, and tells nothing of the token."""
    return hmac.new(token, b"fedbnsl page", hashlib.sha256).hexdigest()


def digest_of(word: str) -> str:
    """What is kept of a word, here and in the file: it does not open a page."""
    return hashlib.sha256(word.encode("utf-8", "replace")).hexdigest()


class Operators:
    """The operators of a folder, read again when the file has changed; and whoever shows the one token without a name.

    Parameters
    ----------
    folder
        Of a federation or a site; None: there are no named operators.
    token
        That has no name (`--web-token`); None: there is none.
    """

    def __init__(self, roles: Roles, *, folder: Path | None = None, token: bytes | None = None) -> None:
        self.roles = roles
        self._path = None if folder is None else folder / FILE
        self._unnamed = None if token is None else Operator("", roles.unnamed, digest_of(word_of(token)))
        self._seen: tuple[int, int, int] | None = None
        self._read: Mapping[str, Operator] = {}

    @staticmethod
    def are_named_in(folder: Path) -> bool:
        """Whether a folder has a file of operators; where all were removed, it is still there, and nobody may look."""
        return (folder / FILE).exists()

    def named(self) -> Mapping[str, Operator]:
        """Those of the folder. Raises ResultError if the file cannot be read."""
        if self._path is None:
            return {}
        try:
            stat = self._path.stat()
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if version != self._seen:
                content = parse_toml(self._path.read_text(encoding="utf-8"))
                self._read = {name: self._operator(name, one) for name, one in content.items()}
                self._seen = version
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ResultError(
                f"{self._path} cannot be read: {why}", remedy="Mend it, or restore it from a back-up."
            ) from None
        return self._read

    def _operator(self, name: str, content: Mapping[str, object]) -> Operator:
        operator = Operator(name, **{key: str(value) for key, value in content.items()})
        if operator.role not in (*self.roles.names, PROXY):
            raise ValueError(f"{name} has the role {operator.role!r}; there are {', '.join(self.roles.names)}")
        return operator

    def holder(self, word: str) -> Operator | None:
        """Whose token this word was made of. Raises ResultError if the file cannot be read."""
        # How long this takes tells of digests at most: nobody finds a word for one that is close.
        digest = digest_of(word)
        known = [*self.named().values(), *([] if self._unnamed is None else [self._unnamed])]
        return next((one for one in known if one.digest == digest), None)

    def still_has(self, operator: Operator) -> bool:
        """Whether an operator who was known before still is, with the same role and token."""
        try:
            return operator in (self._unnamed, self.named().get(operator.name))
        except ResultError:
            return False

    def add(self, name: str, role: str, *, with_token: bool = True) -> str:
        """Add an operator; return the token, which is kept nowhere; empty without one, for those whom a proxy names.

        Raises SetupError if the name cannot be used or is taken, ResultError if the file cannot be read or written.
        """
        if not _NAME.fullmatch(name):
            raise SetupError(f"operator {name!r}: use {_NAME_RULE}")
        token = secrets.token_urlsafe(_TOKEN_BYTES) if with_token else ""
        with self._changing() as operators:
            if name in operators:
                raise SetupError(
                    f"there is an operator {name!r} already, with the role {operators[name].role}",
                    remedy="For another role or token, remove this one first (operators remove).",
                )
            now = datetime.now(UTC).isoformat(timespec="seconds")
            operators[name] = Operator(name, role, digest_of(word_of(token.encode())) if token else "", now)
        return token

    def remove(self, name: str) -> None:
        """Remove an operator, who is refused from now on. Raises SetupError if there is none of that name."""
        with self._changing() as operators:
            if name not in operators:
                known = ", ".join(sorted(operators)) or "none"
                raise SetupError(f"there is no operator {name!r}; there are: {known}", remedy="Check the name.")
            del operators[name]

    @contextmanager
    def _changing(self) -> Generator[dict[str, Operator]]:
        """The operators of the folder, to be changed by one command at a time; written whole at the end."""
        if self._path is None:
            raise SetupError("there is no folder to keep operators in")
        try:
            lock = self._path.with_suffix(".lock").open("w")
        except OSError as error:
            raise ResultError(f"{self._path.parent} cannot be written: {error.strerror}") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            operators = dict(self.named())
            yield operators
            content = {
                name: {"role": one.role, "digest": one.digest, "added": one.added}
                for name, one in sorted(operators.items())
            }
            text = "# Made by `operators add`: digests, from which no token can be found.\n" + tomli_w.dumps(content)
            durable.write_text(self._path, text, mode=durable.OWNER_ONLY)
