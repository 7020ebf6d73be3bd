"""A PostgreSQL server of the tests' own, in a temporary folder on loopback, or a skip that says what is missing."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGQUIT

import pytest

from fedbnsl.errors import ResultError

OWNER, PASSWORD = "keeper", "pass-of-the-keeper"
READER, READER_PASSWORD = "reader", "Zg7-pass-of-the-reader"
_WAIT_S = 60.0
_LONGEST_S = 600.0  # for a statement


@dataclass
class Server:
    """A server that runs, and the process that it is.

    Attributes
    ----------
    folder
        The server may write here.
    """

    port: int
    process: subprocess.Popen[bytes]
    programs: Path
    folder: Path

    @property
    def url(self) -> str:
        """As a site writes it, for the reader."""
        return f"postgresql://{READER}@127.0.0.1:{self.port}/postgres"

    def run(self, sql: str) -> str:
        """Run statements as the owner; what they print.

        Raises
        ------
        ResultError
            If one fails.
        """
        psql = [str(self.programs / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        done = subprocess.run(
            [*psql, "-h", "127.0.0.1", "-p", str(self.port), "-U", OWNER, "postgres"],
            input=sql,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            env={**os.environ, "PGPASSWORD": PASSWORD},
            check=False,
        )
        if done.returncode:
            raise ResultError(f"psql: {done.stderr.strip()}")
        return done.stdout

    def is_up(self) -> bool:
        """Whether it answers."""
        asked = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, timeout=_WAIT_S, check=False).returncode == 0

    def stop(self, how: int = SIGINT) -> None:
        """End it; SIGQUIT: at once, without a farewell to its clients."""
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_WAIT_S)


def _programs() -> Path:
    """The folder of the server's programs; on Debian they are not on the PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / name).exists() for name in ("initdb", "postgres", "psql", "pg_isready")):
            return folder
    pytest.skip("needs a PostgreSQL server: initdb and postgres are not there (Debian's package `postgresql`)")


def _user() -> str | None:
    """Whom the server runs as, because it refuses to run as root; None: who we are."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


@contextmanager
def postgresql_server() -> Generator[Server]:
    """A server with an owner, and a reader who may use the schema `public`; both have passwords.

    Raises
    ------
    ResultError
        If the server does not start.
    """
    programs, user = _programs(), _user()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    # In /tmp, because the server's user must be able to go there.
    folder = Path(tempfile.mkdtemp(prefix="fedbnsl-postgresql-", dir="/tmp"))
    try:
        secret = folder / "secret"
        secret.write_text(PASSWORD, encoding="utf-8")
        if user is not None:
            for path in (folder, secret):
                shutil.chown(path, user)
        initdb = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", OWNER, f"--pwfile={secret}"]
        made = subprocess.run(
            [*initdb, "-A", "scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C"],
            user=user,
            cwd=folder,
            capture_output=True,
            timeout=_WAIT_S,
            check=False,
        )
        if made.returncode:
            raise ResultError(f"initdb: {made.stderr.decode(errors='replace').strip()}")
        log = folder / "log"
        with log.open("wb") as written:
            process = subprocess.Popen(
                [
                    *(str(programs / "postgres"), "-D", str(folder / "data"), "-h", "127.0.0.1", "-p", str(port)),
                    *("-k", "", "-c", "fsync=off", "-c", "max_connections=10"),
                ],
                user=user,
                cwd=folder,
                stdout=written,
                stderr=written,
            )
        server = Server(port, process, programs, folder)
        try:
            until = time.monotonic() + _WAIT_S
            while not server.is_up():
                if process.poll() is not None or time.monotonic() > until:
                    raise ResultError(f"PostgreSQL did not start: {log.read_text(errors='replace')}")
                time.sleep(0.05)
            server.run(
                f"create role {READER} login password '{READER_PASSWORD}'; grant create on schema public to {READER};"
            )
            yield server
        finally:
            server.stop(SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
