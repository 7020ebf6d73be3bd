"""Outsiders who knock and go: what they leave unfinished must not cost the coordinator its life."""

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedbnsl.channel import split_address
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.observe.status_client import Observer
from federation_folder import make_federation

KNOCKS = 1500  # by each of
KNOCKERS = 8


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    make_federation(tmp_path / "federation")
    (tmp_path / "plan.toml").write_text("")
    serve = [sys.executable, "-m", "fedbnsl", "coordinator", "serve", tmp_path / "plan.toml"]
    options = [f"--federation={tmp_path / 'federation'}", "--listen=127.0.0.1:0", f"--out={tmp_path / 'run'}"]
    process = subprocess.Popen([*serve, *options, f"--address-file={tmp_path / 'address'}"], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "address").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield process, (tmp_path / "address").read_text()
    finally:
        process.kill()
        process.wait()


def test_a_coordinator_outlives_handshakes_that_break_off_all_at_once(
    coordinator: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    process, address = coordinator
    host, port = split_address(address)
    distrustful = ssl.create_default_context()  # it knows no authority of the federation's

    def knock(how: int) -> None:
        for _ in range(KNOCKS):
            with suppress(OSError), socket.create_connection((host, port), timeout=5) as stranger:
                if how % 2:
                    distrustful.wrap_socket(stranger, server_hostname=host)

    knockers = [threading.Thread(target=knock, args=(how,)) for how in range(KNOCKERS)]
    for knocker in knockers:
        knocker.start()
    for knocker in knockers:
        knocker.join()
    assert process.poll() is None
    observer = Observer(address, Federation.open(tmp_path / "federation").credentials())
    status = observer.status()
    observer.close()
    assert status is not None, observer.silence
    assert status.state == "waiting for sites"
