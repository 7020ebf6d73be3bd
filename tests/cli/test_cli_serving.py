"""`fedbnsl coordinator serve` and `participant join`: addresses, variables, refusals at both ends, pauses."""

import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from command_line import VARIABLES, Outcome, contents, refused, run_unread, strict_json
from fedbnsl.plan.plan import Plan


def test_2_plaintext_must_be_asked_for(fedbnsl, plan, tables, tmp_path):
    join = ("participant", "join", "127.0.0.1:9", "--site=s", "--public-data", "--data", tables / "site-1.csv")
    refused(fedbnsl(*join), 2, "without --insecure", "certificate")
    serve = (
        "coordinator",
        "serve",
        plan,
        "--listen=127.0.0.1:0",
        "--set=join_deadline_s=0.1",
        "--out",
        tmp_path / "run",
    )
    refused(fedbnsl(*serve), 2, "--federation", "--insecure")
    assert not (tmp_path / "run").exists()


def test_2_a_coordinator_is_told_the_variables_before_any_site_calls(fedbnsl, plan, tables, tmp_path):
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--out={tmp_path / 'run'}")
    refused(fedbnsl(*serve), 2, "does not name its variables", "--variables a,b,c", "`variables` in the plan")
    refused(fedbnsl(*serve, VARIABLES, "--sites=a,b"), 3, "sites", "as many names as n_participants")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ['"X 1",X2', "names.csv"])
def test_variables_and_sites_of_a_run_are_named_on_the_command_line(given, fedbnsl, plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.csv").write_text('"X 1", X2\n1,2\n', encoding="utf-8-sig")
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--out=run", "--sites=a,b,c")
    assert fedbnsl(*serve, f"--variables={given}", "--set=join_deadline_s=0.01").code == 7
    served = Plan.load(tmp_path / "run" / "plan.toml")
    assert (served.variables, served.sites) == (("X 1", "X2"), ("a", "b", "c"))


@pytest.mark.parametrize(
    "header",
    ['"X 1";X2;"HDL, mg/dl"', '"X 1"\tX2\t"HDL, mg/dl"', 'sep=;\n"X 1";X2;"HDL, mg/dl"', '"X 1",X2,"HDL, mg/dl"'],
)
def test_a_file_of_variables_is_read_as_a_table_is(header, fedbnsl, plan, tmp_path):
    (tmp_path / "names.csv").write_text(f"{header}\n", encoding="utf-8-sig")
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--out", tmp_path / "run")
    assert fedbnsl(*serve, "--variables", tmp_path / "names.csv", "--set=join_deadline_s=0.01").code == 7
    assert Plan.load(tmp_path / "run" / "plan.toml").variables == ("X 1", "X2", "HDL, mg/dl")


@pytest.mark.parametrize("given", ["absent.csv", "a,Names.TXT", "tables/names"])
def test_2_a_file_of_variables_that_does_not_exist_is_no_name_of_a_variable(given, fedbnsl, plan, tmp_path):
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--out", tmp_path / "run")
    serve += ("--set=join_deadline_s=0.01",)
    refused(fedbnsl(*serve, "--variables", given), 2, f"no such file: {given.rpartition(',')[2]}", "first line")
    assert not (tmp_path / "run").exists()


def test_a_variable_may_have_a_slash_in_its_name(fedbnsl, plan, tmp_path):
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--out", tmp_path / "run")
    assert fedbnsl(*serve, "--variables=HDL/LDL,age", "--set=join_deadline_s=0.01").code == 7
    assert Plan.load(tmp_path / "run" / "plan.toml").variables == ("HDL/LDL", "age")


def test_a_coordinator_goes_on_though_nobody_reads_what_it_says(plan, tmp_path):
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--out={tmp_path / 'run'}", VARIABLES)
    ended = run_unread(*serve, "--set=join_deadline_s=0.01")
    assert (ended.code, "Bring the named sites back" in ended.err) == (7, True), ended


@pytest.mark.parametrize("address", ["192.0.2.1:50051", "0.0.0.0:0", "[::]:0"])
def test_2_plaintext_does_not_leave_this_machine(address, fedbnsl, plan, tables, tmp_path):
    join = ("participant", "join", address, "--insecure", "--site=s", "--public-data", "--data", tables / "site-1.csv")
    refused(fedbnsl(*join), 2, address, "is not on this machine")
    serve = ("coordinator", "serve", plan, "--insecure", "--listen", address, "--set=join_deadline_s=0.1")
    refused(fedbnsl(*serve, "--out", tmp_path / "run"), 2, address, "is not on this machine")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:port", ":50051", "127.0.0.1:70000"])
def test_2_an_address_without_host_or_port_is_refused_with_an_example(address, fedbnsl, tables):
    join = ("participant", "join", address, "--insecure", "--site=s", "--public-data", "--data", tables / "site-1.csv")
    refused(fedbnsl(*join), 2, repr(address), "expected host:port, such as 127.0.0.1:50051")


def test_2_a_port_in_use_is_named_and_the_folder_left_free(fedbnsl, plan, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        serve = ("coordinator", "serve", plan, "--insecure", "--listen", listen, VARIABLES, "--out", tmp_path / "run")
        refused(fedbnsl(*serve), 2, f"cannot listen on {listen}: the port is in use")
    assert not (tmp_path / "run").exists()


def test_2_a_site_needs_a_name_that_can_name_a_file(fedbnsl, tables):
    join = ("participant", "join", "127.0.0.1:9", "--insecure", "--public-data", "--data", tables / "site-1.csv")
    for name in ("", "../here", "a b", "-x"):
        refused(fedbnsl(*join, f"--site={name}"), 2, f"--site {name!r}")


def test_6_a_coordinator_that_is_not_there_is_called_for_no_longer_than_the_patience(fedbnsl, tables):
    with socket.create_server(("127.0.0.1", 0)) as once:
        address = f"127.0.0.1:{once.getsockname()[1]}"
    join = (
        "participant",
        "join",
        address,
        "--insecure",
        "--site=s",
        "--public-data",
        "--data",
        tables / "site-1.csv",
        "--patience=0",
    )
    refused(fedbnsl(*join), 6, f"the coordinator at {address} did not answer", "Check the address")


def test_5_7_and_10_a_refused_site_and_a_run_for_which_too_few_join_end_at_both_ends(fedbnsl, plan, tables, tmp_path):
    address_file, out = tmp_path / "address", tmp_path / "run"
    serve = ["coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--address-file={address_file}"]
    deadline = ["--set=join_deadline_s=4", "--set=n_participants=2", f"--out={out}", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "fedbnsl", *serve, *deadline, VARIABLES],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as coordinator:
        try:
            while not address_file.exists():
                assert coordinator.poll() is None, coordinator.stderr.read()
                time.sleep(0.02)
            address = address_file.read_text(encoding="utf-8")
            join = ("participant", "join", address, "--insecure", "--public-data", "--data", tables / "site-1.csv")
            misfit = fedbnsl(*join, "--site=nll", "--columns=X1,X2,X3")
            joined = fedbnsl(*join, "--site=here", "--out", tmp_path / "here")
            said = coordinator.communicate(timeout=30)
            served = Outcome(coordinator.returncode, *said)
        finally:
            coordinator.kill()
    refused(misfit, 5, "the coordinator refused", "missing: X4, X5", "choose them with --columns")
    refused(joined, 10, "too few sites answered in time", "Ask the coordinator's operator")
    refused(served, 7, "1 of 2 sites joined within join_deadline_s = 4 s (here)", "Bring the named sites back")
    assert strict_json((out / "result.json").read_text(encoding="utf-8"))["state"] == "failed"


def test_a_folder_with_a_run_is_refused_before_a_site_can_call(fedbnsl, run, plan, tmp_path):
    before = contents(run)
    address = tmp_path / "address"
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--address-file={address}")
    refused(fedbnsl(*serve, VARIABLES, "--out", run), 9, f"folder {run} holds a run already")
    assert not address.exists()
    assert contents(run) == before


def signalled(number, *arguments):
    """Exit code and lines of a coordinator that is sent a signal once sites can call it."""
    coordinator = subprocess.Popen(
        [sys.executable, "-u", "-m", "fedbnsl", "coordinator", "serve", "--insecure", "--listen=127.0.0.1:0"]
        + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [""]
    try:
        while not lines[-1].startswith("listening on "):
            lines.append(coordinator.stdout.readline())
            assert lines[-1], lines
        coordinator.send_signal(number)
        lines += coordinator.communicate(timeout=30)[0].splitlines(keepends=True)
    finally:
        coordinator.kill()
    return coordinator.returncode, [line.rstrip("\n") for line in lines[1:]]


def test_130_of_a_run_without_a_round_nothing_was_learned_and_both_sides_can_repeat_it(fedbnsl, tables, tmp_path):
    run = tmp_path / "my run"
    code, lines = signalled(signal.SIGINT, "private-moments", "--epsilon=1", "--variables=x,y,z", f"--out={run}")
    said, address = "\n".join(lines), lines[0].removeprefix("listening on ").partition(";")[0]
    assert code == 130, said
    assert f"No round was finished; continue with: fedbnsl coordinator serve '{run}' --insecure" in said
    assert "What was learned" not in said
    serve, join, spends = (run / "command.txt").read_text(encoding="utf-8").splitlines()
    assert serve == f"fedbnsl coordinator serve plan.toml --insecure --listen {address} --out '../my run-again'"
    assert "spends the sites' privacy budgets again" in spends
    own = tmp_path / "own"
    assert fedbnsl("participant", "init", own, "--site=n", "--data", tables / "site-1.csv", "--dataset=d").code == 0
    words = shlex.split(join.replace("SITE_FOLDER", str(own)))
    outcome = fedbnsl(*words[1:], "--patience=0")
    assert (outcome.code, address in outcome.err) == (6, True), "the command is right; nobody answers"


def test_0_a_paused_coordinator_says_how_to_go_on_and_a_run_takes_no_other_settings(fedbnsl, plan, tmp_path):
    run = tmp_path / "my run"
    for life, settings in enumerate(
        ([plan, VARIABLES, f"--out={run}", "--seed=data=5"], [run], [plan, VARIABLES, f"--out={run}"])
    ):
        code, lines = signalled(signal.SIGTERM, *settings)
        assert code == 0, lines
        if life:
            assert lines[0].startswith("continuing run ")
            assert "before round 1" in lines[0]
        assert lines[min(life, 1)].startswith("listening on ")
        again = f"fedbnsl coordinator serve '{run}' --insecure --listen 127.0.0.1:0"
        assert lines[-1] == f"paused before round 1; continue with: {again}"
        result = strict_json((run / "result.json").read_text(encoding="utf-8"))
        assert (result["state"], len(result["manifest"]["resumed_at"])) == ("interrupted", life)
        assert result["manifest"]["seeds"] == {"data": 5}
    for option in ("--set=rounds=3", f"--out={tmp_path / 'other'}", "--seed=data=6", VARIABLES, "--sites=a"):
        refused(fedbnsl("coordinator", "serve", run, "--insecure", option), 2, "continues with its own settings")
    refused(fedbnsl("coordinator", "serve", tmp_path, "--insecure"), 9, "holds no run that can be continued")
    other = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--set=rounds=9", VARIABLES)
    refused(fedbnsl(*other, "--out", run), 9, "holds the run of another plan")
