"""A PostgreSQL server of the tests' own, in a temporary folder on loopback, or a skip that says what is missing."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGQUIT

import pytest

from free_port import free_port

OWNER, PASSWORD = "keeper", "pass-of-the-keeper"
READER, READER_PASSWORD = "reader", "Zg7-pass-of-the-reader"
_WAIT_S = 60.0


@dataclass
class Server:
    """A server that runs, and the process that it is."""

    port: int
    process: subprocess.Popen[bytes]
    programs: Path

    @property
    def url(self) -> str:
        """As a site writes it."""
        return f"postgresql://{READER}@127.0.0.1:{self.port}/postgres"

    def run(self, sql: str) -> str:
        """Run statements as the owner; what they print."""
        done = subprocess.run(
            [*self._psql, "-v", "ON_ERROR_STOP=1", "-A", "-t", "-f", "-"],
            input=sql,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            env={**os.environ, "PGPASSWORD": PASSWORD},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def _psql(self) -> list[str]:
        return [
            str(self.programs / "psql"),
            "-X",
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            OWNER,
            "postgres",
        ]

    def is_up(self) -> bool:
        """Whether it answers."""
        asked = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, timeout=_WAIT_S, check=False).returncode == 0

    def stop(self, how: int = SIGINT) -> None:
        """End it, SIGQUIT at once and without a farewell to its clients."""
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
    """Whom the server runs as: it refuses to run as root."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


@contextmanager
def postgresql_server() -> Iterator[Server]:
    """A server with an owner and a reader who may read, each with a password."""
    programs, user, port = _programs(), _user(), free_port()
    folder = Path(tempfile.mkdtemp(prefix="fedbnsl-postgresql-", dir="/tmp"))
    try:
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        if user is not None:
            for path in (folder, secret):
                shutil.chown(path, user)
        made = subprocess.run(
            [
                programs / "initdb",
                "-D",
                folder / "data",
                "-A",
                "scram-sha-256",
                "-U",
                OWNER,
                f"--pwfile={secret}",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C",
            ],
            user=user,
            cwd=folder,
            capture_output=True,
            timeout=_WAIT_S,
            check=False,
        )
        assert made.returncode == 0, made.stderr.decode()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    programs / "postgres",
                    "-D",
                    folder / "data",
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(port),
                    "-k",
                    "",
                    "-c",
                    "fsync=off",
                    "-c",
                    "max_connections=10",
                ],
                user=user,
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        server = Server(port, process, programs)
        try:
            until = time.monotonic() + _WAIT_S
            while not server.is_up():
                if process.poll() is not None or time.monotonic() > until:
                    raise AssertionError((folder / "log").read_text())
                time.sleep(0.05)
            server.run(
                f"create role {READER} login password '{READER_PASSWORD}'; grant create on schema public to {READER};"
            )
            yield server
        finally:
            server.stop(SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
