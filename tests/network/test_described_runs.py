"""Real processes over tables that a data dictionary describes: as in one process, and one dictionary for all."""

import csv
import json
import time
from pathlib import Path

import numpy as np
import pytest

from described_tables import VARIABLES, write_dictionary, write_folder
from fedbnsl.errors import SchemaMismatchError
from fedbnsl.network import NETWORK
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.site_files import column_file, site_files
from fedbnsl_workbench import localnet
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import described_by, read_tables
from forked import forked_network, forked_run

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")
STANDARD = Plan.load("standard").with_settings(n_participants=2, join_deadline_s=30.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data")


def test_sites_with_words_of_their_own_get_the_graph_of_one_process(folder: Path, tmp_path: Path) -> None:
    plan = described_by(STANDARD, folder)
    files = site_files(folder)
    forked_run(plan, files, tmp_path / "network", seeds={})
    simulate(plan, read_tables(files, (), dictionary=plan.dictionary, warn=False), tmp_path / "alone")
    network, alone = (
        json.loads((tmp_path / run / "result.json").read_text(encoding="utf-8")) for run in ("network", "alone")
    )
    assert network["edges"] == alone["edges"]
    assert network["variables"] == list(VARIABLES)
    assert {"blood", "visits"} in [{edge["source"], edge["target"]} for edge in network["edges"]]
    for site in files:
        kept = tmp_path / "network" / "sites" / site
        own, common, personalised = (
            {
                (row["source"], row["target"]): row
                for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
            }
            for path in (kept / "edges.csv", tmp_path / "network" / "edges.csv", kept / "personalised-edges.csv")
        )
        assert {pair: float(row["weight"]) for pair, row in own.items()} == pytest.approx(
            {pair: float(row["weight"]) for pair, row in common.items()}
        )
        levels = [
            {pair: (row["source_level"], row["target_level"]) for pair, row in rows.items()}
            for rows in (own, common, personalised)
        ]
        assert levels[0] == levels[1] == levels[2], "of each edge the same coefficient everywhere"
        assert any(map(any, levels[0].values()))
        assert "blood=A" not in (kept / "personalised-edges.csv").read_text(encoding="utf-8")


def test_sites_that_score_the_network_alone_find_what_they_would_have_sent(folder: Path, tmp_path: Path) -> None:
    plan, files = described_by(STANDARD, folder), site_files(folder)
    forked_run(plan.with_settings(validation="at_site"), files, tmp_path / "network", seeds={})
    told = simulate(plan, read_tables(files, (), dictionary=plan.dictionary, warn=False), tmp_path / "alone")
    network = json.loads((tmp_path / "network" / "result.json").read_text(encoding="utf-8"))
    assert network["edges"] == told["edges"]
    assert network["validation"] is None
    assert [one["kind"] for one in told["rounds"]][-1] == "validation"
    assert [one["kind"] for one in network["rounds"]] == [one["kind"] for one in told["rounds"]][:-1]
    kept_by_run = (tmp_path / "network" / NETWORK).read_bytes()
    assert kept_by_run == (tmp_path / "alone" / NETWORK).read_bytes()
    for site in files:
        assert (tmp_path / "network" / "sites" / site / NETWORK).read_bytes() == kept_by_run
        path = tmp_path / "network" / "sites" / site / "validation.json"
        assert path.stat().st_mode & 0o777 == 0o600
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert kept["network"] == told["validation"]["network"], "the same network"
        assert kept["variables"].keys() == told["validation"]["variables"].keys()
        for name, both in kept["variables"].items():
            of_run = told["validation"]["variables"][name]["sites"][site]
            for means, scores in both.items():
                assert {key: scores[key] for key in of_run[means]} == of_run[means], (site, name, means)


def test_a_private_site_that_lacks_a_column_keeps_the_weights_that_its_other_columns_tell(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", gaps=False)
    lines = [line.split(",") for line in (folder / "site-2.csv").read_text(encoding="utf-8").splitlines()]
    without = "\n".join(",".join([*row[:1], *row[2:]]) for row in lines)
    (folder / "site-2.csv").write_text(without + "\n", encoding="utf-8")
    (folder / "site-2.columns.toml").write_text("[crp]\nabsent = true\n", encoding="utf-8")
    plan = described_by(
        Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=4.0).with_settings(
            n_participants=2,
            variables=["age", "crp", "sex", "visits"],
            absent={"site-2": ["crp"]},
            knowledge={"required": [["age", "crp"], ["sex", "visits"]], "forbidden": [["crp", "visits"]]},
        ),
        folder,
    )
    out = tmp_path / "run"
    forked_run(plan, site_files(folder), out, seeds={}, own_state=True)
    text = (out / "sites" / "site-2" / "personalised-edges.csv").read_text(encoding="utf-8")
    own = {(row["source"], row["target"]): row["weight"] for row in csv.DictReader(text.splitlines())}
    assert own["age", "crp"] == ""
    sources = [source for source, target in own if target == "visits"]
    table = read_tables(site_files(folder), (), dictionary=plan.dictionary, warn=False)["site-2"].reordered(
        [*sources, "visits"]
    )
    X = table.X - table.X.mean(axis=0)
    expected = np.linalg.lstsq(X[:, :-1], X[:, -1], rcond=None)[0]
    assert [float(own[source, "visits"]) for source in sources] == pytest.approx(expected.tolist())


def test_private_sites_keep_dictionary_and_own_words_in_their_folders(folder: Path, tmp_path: Path) -> None:
    plan = described_by(
        Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=4.0).with_settings(n_participants=2), folder
    )
    out = tmp_path / "run"
    forked_run(plan, site_files(folder), out, seeds={}, own_state=True)
    first, second = (out / "sites" / site / "guard" for site in ("site-1", "site-2"))
    assert Dictionary.load(first / "dictionary.toml") == plan.dictionary
    own = (folder / "site-1.columns.toml").read_text(encoding="utf-8")
    assert (first / "columns.toml").read_text(encoding="utf-8") == own
    assert not (second / "columns.toml").exists()
    assert localnet.read_ledgers(out, ["site-1"])["site-1"]["spent"]["epsilon"] == pytest.approx(4.0, rel=1e-3)
    sent = (out / "result.json").read_text(encoding="utf-8") + (out / "events.jsonl").read_text(encoding="utf-8")
    assert "Alter" not in sent, "what is different at a site stays there"
    assert "left out" not in sent


def test_a_site_with_another_dictionary_refuses_the_run_and_sends_nothing(folder: Path, tmp_path: Path) -> None:
    plan, files = described_by(STANDARD, folder), site_files(folder)
    other = write_dictionary(tmp_path / "other.toml", age={"unit": "years", "range": [0.0, 120.0]})
    with forked_network(tmp_path / "logs") as network:
        address = localnet.start_coordinator(network, plan, tmp_path / "run", seeds={})
        for site, dictionary in (("site-1", folder / "dictionary.toml"), ("site-2", other)):
            here = column_file(files[site])
            join = ["participant", "join", address, "--insecure", f"--site={site}", "--public-data"]
            join += [f"--data={files[site]}", f"--dictionary={dictionary}", f"--out={tmp_path / site}"]
            network.start(site, [*join, *([] if here is None else [f"--column-map={here}"])])
        until = time.monotonic() + 40
        while not network.ended("site-2") and time.monotonic() < until:
            time.sleep(0.1)
        with pytest.raises(localnet.ProcessError) as failed:
            network.check()
    assert failed.value.exit_code == SchemaMismatchError.exit_code
    said = (tmp_path / "logs" / "site-2.log").read_text(encoding="utf-8")
    assert f"here, {plan.dictionary.digest()[:8]} there" in said
    assert "Get the consortium's dictionary.toml" in said
    assert not (tmp_path / "site-2" / "edges.csv").exists()


def test_real_processes_count_categories_as_one_process_does(tmp_path: Path) -> None:
    folder, rng = tmp_path / "data", np.random.default_rng(3)
    folder.mkdir()
    entries = {"smokes": "no yes", "ward": "a b c", "coughs": "no yes"}
    lines = [f'[{name}]\nkind = "{"binary" if len(own.split()) == 2 else "nominal"}"\nlevels = {own.split()}\n'
             for name, own in entries.items()]  # fmt: skip
    (folder / "dictionary.toml").write_text("".join(lines), encoding="utf-8")
    for site in (1, 2):
        smokes, ward = rng.integers(0, 2, 300), rng.integers(0, 3, 300)
        coughs = ((smokes + ward) % 2 ^ (rng.random(300) < 0.1)).astype(int)
        columns = zip(smokes, ward, coughs, strict=True)
        rows = [f"{('no', 'yes')[s]},{'abc'[w]},{('no', 'yes')[c]}" for s, w, c in columns]
        (folder / f"site-{site}.csv").write_text("smokes,ward,coughs\n" + "\n".join(rows) + "\n", encoding="utf-8")
    plan, files = described_by(STANDARD.with_settings(bootstrap=5), folder), site_files(folder)
    forked_run(plan, files, tmp_path / "network", seeds={})
    simulate(plan, read_tables(files, (), dictionary=plan.dictionary, warn=False), tmp_path / "alone")
    network, alone = (
        json.loads((tmp_path / run / "result.json").read_text(encoding="utf-8")) for run in ("network", "alone")
    )
    assert [entry["kind"] for entry in network["rounds"]].count("counts") == 5
    assert network["edges"] == alone["edges"]
    assert network["categories"] == alone["categories"]
    assert len(network["edges"]) == 2
