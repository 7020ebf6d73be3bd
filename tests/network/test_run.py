"""Real processes over loopback gRPC, against the same run in one process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.site_files import site_files
from fedbnsl_workbench import localnet
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import write_federation
from fedbnsl_workbench.tables.synthetic import synthesise
from waiting import until

GRAPH_FILES = ["weights.csv", "edges.csv", "graph.graphml", "graph.dot", "dagitty.txt", "lgbn.json"]


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    write_federation(synthesise(8, 8, 3, 200, 7, weight_variance=0.05), tmp_path / "data")
    return site_files(tmp_path / "data")


def read(run: Path) -> dict:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def in_one_process(plan: Plan, tables: dict[str, Path], out: Path) -> None:
    simulate(plan, {site: Dataset.read(path) for site, path in tables.items()}, out)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"value_type": "float32", "refit_rounds": 2},
        {"send_tolerance": 0.02, "send_step": 0.0078125, "value_type": "float32"},
        {"acyclicity_schedule": "augmented", "refit_rounds": 0, "step_size": 0.5},
        {"knowledge": {"required": [["X1", "X2"]], "forbidden": [["X3", "X4"]], "tiers": [["X5"], ["X6", "X7"]]}},
        {"local_solver": "closed-form", "knowledge": {"forbidden": [["X3", "X4"]]}},
        {"local_solver": "closed-form", "value_type": "float32"},
        {"local_solver": "frank-wolfe", "local_steps": 1000, "knowledge": {"forbidden": [["X3", "X4"]]}},
    ],
    ids=[
        "default",
        "float32",
        "rounded",
        "augmented",
        "knowledge",
        "closed-form",
        "closed-form float32",
        "frank-wolfe",
    ],
)
def test_a_network_of_processes_and_one_process_give_the_same_bits(settings, tables, tmp_path):
    plan = Plan(n_participants=3, rounds=15).with_settings(**settings)
    localnet.run(plan, tables, tmp_path / "network", seeds={})
    in_one_process(plan, tables, tmp_path / "alone")
    for name in GRAPH_FILES if plan.refit_rounds else GRAPH_FILES[:-1]:
        assert (tmp_path / "network" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
    network, alone = read(tmp_path / "network"), read(tmp_path / "alone")
    assert len(network["rounds"]) == plan.rounds + plan.refit_rounds
    for there, here in zip(network["rounds"], alone["rounds"], strict=True):
        for key in ("round", "kind", "contributed", "acyclicity", "edges", "bytes"):
            assert there[key] == here[key], (there["round"], key)
    assert network["state"] == alone["state"] == "finished"


def test_sites_keep_the_graph_and_their_own_refit(tables, tmp_path):
    localnet.run(Plan(rounds=15), tables, tmp_path / "run", seeds={"data": 7})
    consensus = (tmp_path / "run" / "edges.csv").read_text(encoding="utf-8")
    personal = set()
    for site in tables:
        folder = tmp_path / "run" / "sites" / site
        assert (folder / "edges.csv").read_text(encoding="utf-8") == consensus
        personal.add((folder / "personalised-edges.csv").read_text(encoding="utf-8"))
        assert (folder / "personalised-edges.csv").stat().st_mode & 0o777 == 0o600
    assert len(personal) == 3, "every site's own weights differ"
    assert read(tmp_path / "run")["manifest"]["seeds"] == {"data": 7}


def test_a_site_with_bad_data_ends_the_demo_with_its_words_and_exit_code(tables, tmp_path):
    lines = tables["site-2"].read_text(encoding="utf-8").splitlines()
    lines[5] = lines[5].replace(lines[5].split(",")[3], "high", 1)
    tables["site-2"].write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(localnet.ProcessError) as caught:
        localnet.run(Plan(rounds=15), tables, tmp_path / "run", seeds={})
    assert caught.value.exit_code == 4
    assert "site-2" in str(caught.value)
    assert "column 'X4': 1 row(s) are not numbers" in str(caught.value)
    result = read(tmp_path / "run")
    assert result["state"] == "interrupted"
    assert "X4" not in json.dumps({key: result[key] for key in ("reason", "edges", "rounds")}), "nothing of it was sent"


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_ends_every_process_and_leaves_a_readable_folder(which, tmp_path):
    write_federation(synthesise(20, 20, 3, 500, 7), tmp_path / "data")
    out = tmp_path / "run"
    arguments = ["demo", "--data", str(tmp_path / "data"), "--out", str(out), "--set", "rounds=100000"]
    demo = subprocess.Popen(
        [sys.executable, "-m", "fedbnsl", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(which, signal.SIG_DFL),  # under nohup, SIGHUP is ignored
    )
    try:
        until(
            lambda: (out / "events.jsonl").exists() and '"round": 5,' in (out / "events.jsonl").read_text(), "round 5"
        )
        children = descendants(demo.pid)
        assert len(children) == 6, "coordinator, three sites, their fork server and its resource tracker"
        demo.send_signal(which)
        output, _ = demo.communicate(timeout=60)
        until(lambda: not any(alive(pid) for pid in children), "the end of the children")
    finally:
        demo.kill()
    assert demo.returncode == 130
    assert b"interrupted by " + which.name.encode() in output
    result = read(out)
    assert result["state"] == "interrupted"
    assert len(result["rounds"]) >= 5
    for name in [*GRAPH_FILES[:-1], "plan.toml", "checkpoint.npz"]:
        assert (out / name).stat().st_size > 0


def descendants(pid: int) -> list[int]:
    """The children of a process and theirs (Linux)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, []))
    return found[1:]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_folder_that_cannot_be_made_is_refused_as_such(tables, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ResultError, match="cannot be made"):
        localnet.run(Plan(rounds=2), tables, tmp_path / "file" / "run", seeds={})
