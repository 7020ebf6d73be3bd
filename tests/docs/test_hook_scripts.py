"""The scripts on the page about hooks do what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedbnsl.events.emitter import KINDS, Event
from fedbnsl.events.hook import FOR_PEOPLE, Hook

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "events.md").read_text(encoding="utf-8")
SMTP = """
class SMTP:
    def __init__(self, host, timeout): pass
    def __enter__(self): return self
    def __exit__(self, *exception): pass
    def send_message(self, mail): print(mail)
"""


def script(shebang: str) -> str:
    (found,) = re.findall(rf"```\w+\n({re.escape(shebang)}\n.*?)```", PAGE, re.DOTALL)
    return found


def test_the_mail_names_run_and_event_in_its_subject_and_all_fields_in_its_text(tmp_path: Path) -> None:
    (tmp_path / "smtplib.py").write_text(SMTP, encoding="utf-8")
    (tmp_path / "tell_me.py").write_text(script("#!/usr/bin/env python3"), encoding="utf-8")
    event = '{"site": "north", "event": "site away", "run": "heart-1", "time": "2026-11-23T09:00:00Z"}'
    done = subprocess.run(
        [sys.executable, tmp_path / "tell_me.py"], input=event, capture_output=True, text=True, check=True, timeout=60
    )
    assert "Subject: heart-1: site away north\n" in done.stdout
    assert "time: 2026-11-23T09:00:00Z\n" in done.stdout


def test_the_web_service_gets_the_event_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "curl": f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/body\n',
        "tell-me": script("#!/bin/sh"),
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    with Hook("tell-me") as hook:
        hook(Event("site away", "heart-1", {"site": "north"}, 1_763_888_400.25))
    assert '"event": "site away", "run": "heart-1"' in (tmp_path / "body").read_text()
    assert f"--config {tmp_path}/.tell-me" in (tmp_path / "arguments").read_text()


def test_the_page_lists_all_events_and_in_bold_those_that_a_hook_is_called_for() -> None:
    rows = "\n".join(line.partition("|")[2].partition("|")[0] for line in PAGE.splitlines() if line.startswith("| "))
    listed = set(re.findall(r"`([a-z][a-z ]+)`", rows)) & set(KINDS)
    assert listed == set(KINDS)
    assert set(re.findall(r"\*\*`([a-z ]+)`\*\*", rows)) == set(FOR_PEOPLE)
