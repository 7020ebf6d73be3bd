"""--web and --web-token on the command line: refused before anything is made or called."""

import pytest

from command_line import run_command
from private_site import make_site


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--web-token=token"], "--web-token goes with --web"),
        (["--web=127.0.0.1:0", "--web-token=token"], "--web-token needs --federation"),
        (["--web=0.0.0.0:0"], "is not on this machine"),
        (["--web=nowhere"], "expected host:port"),
    ],
)
def test_a_coordinator_refuses_a_page_that_it_cannot_have(capsys, tmp_path, options, text):
    out = tmp_path / "run"
    serve = ["coordinator", "serve", "fed-sparse", "--variables=a,b", "--insecure", "--listen=127.0.0.1:0"]
    outcome = run_command(capsys, *serve, f"--out={out}", *options)
    assert outcome.code == 2
    assert text in outcome.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--web-token=token"], "--web-token and --web-certificate go with --web"),
        (["--web=127.0.0.1:0", "--web-token=token"], "--web-token needs --web-certificate"),
        (["--web=0.0.0.0:0"], "is not on this machine"),
    ],
)
def test_a_site_refuses_a_page_that_it_cannot_have(capsys, tmp_path, monkeypatch, options, text):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    make_site(tmp_path / "north")
    join = ["participant", "join", "127.0.0.1:1", "--insecure", f"--policy={tmp_path / 'north'}", "--patience=0"]
    outcome = run_command(capsys, *join, *options)
    assert outcome.code == 2
    assert text in outcome.err
