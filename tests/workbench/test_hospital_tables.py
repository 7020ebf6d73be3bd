"""The case that dictionary, column files and preparation are for: tables of hospitals, as they are, give the graph."""

import csv
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedbnsl.errors import DataError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.site_files import site_files
from fedbnsl_client.join_run import take_part
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import ServerSettings
from fedbnsl_workbench.scoring.evaluation import learned_graph, read_result
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.scoring.reference import read_reference
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import described_by, read_tables
from fedbnsl_workbench.tables.hospital import ALL, draw, write_hospitals
from federation_folder import enrol, make_federation

SEED = 0
ROWS = (200, 3000, 6000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hospitals") / "data"
    write_hospitals(draw(SEED, ALL, rows=ROWS), found)
    return found


def read(folder: Path, plan: Plan) -> tuple[Plan, dict[str, Dataset]]:
    files = site_files(folder)
    plan = described_by(plan, folder).with_settings(n_participants=len(files))
    return plan, read_tables(files, plan.variables, dictionary=plan.dictionary, warn=False)


def run(folder: Path, out: Path, plan: Plan) -> dict[str, Any]:
    plan, tables = read(folder, plan)
    return simulate(plan, tables, out, noise_seed=1 if plan.privacy else None)


def skeleton_f1(result: dict[str, Any], folder: Path) -> float:
    reference = read_reference(folder / "truth.csv", result["variables"])
    found = score(reference.of_common(learned_graph(result)), reference.edges).skeleton_f1
    assert found is not None
    return found


@pytest.fixture(scope="module")
def standard(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "standard"
    run(folder, out, Plan.load("standard"))
    return out


def test_the_plan_standard_finds_who_is_next_to_whom(standard: Path, folder: Path) -> None:
    result = read_result(standard)
    assert result["variables"] == list(described_by(Plan(), folder).dictionary.variables)
    assert skeleton_f1(result, folder) >= 0.95


def test_own_names_spellings_and_units_of_a_site_leave_graph_and_weights_as_they_are(
    standard: Path, tmp_path: Path
) -> None:
    write_hospitals(draw(SEED, [name for name in ALL if name != "spellings"], rows=ROWS), tmp_path / "plain")
    plain = run(tmp_path / "plain", tmp_path / "run", Plan.load("standard"))
    of_plain, of_own = (
        {(edge["source"], edge["target"]): edge["weight"] for edge in result["edges"]}
        for result in (plain, read_result(standard))
    )
    assert of_plain.keys() == of_own.keys()
    for pair, weight in of_own.items():
        assert weight == pytest.approx(of_plain[pair], rel=1e-3), "cells have six digits in either unit"


def test_a_private_run_needs_nothing_but_the_dictionary_and_tells_no_count_of_rows(
    folder: Path, tmp_path: Path
) -> None:
    result = run(folder, tmp_path / "run", Plan.load("private", epsilon=5.0))
    assert skeleton_f1(result, folder) >= 0.8
    complete = []
    for path in site_files(folder).values():
        _, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
        complete.append(sum(not {"", "NA", "-9", "999"} & set(row) for row in rows))
    assert all(0 < n < whole for n, whole in zip(complete, ROWS, strict=True))
    for file in (path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        without_hashes = re.sub(rb"[0-9a-f]{16,}", b"", file.read_bytes())
        told = set(re.findall(rb"(?<![\d.e-])\d+(?![\d.])", without_hashes))
        assert not {str(n).encode() for n in complete} & told, file.name


def test_a_word_that_the_dictionary_does_not_know_is_refused_with_its_site(tmp_path: Path) -> None:
    write_hospitals(draw(SEED, ("binary", "nominal", "unsaid-999s"), rows=(50, 60, 70)), tmp_path / "data")
    with pytest.raises(DataError, match=r"site-2\.csv: column 'smoker': 1 row.* 'ward': 1 row") as refused:
        read(tmp_path / "data", Plan.load("standard"))
    assert "site-1" not in str(refused.value)


def test_over_tls_the_sites_learn_the_same_bits(folder: Path, standard: Path, tmp_path: Path) -> None:
    plan, tables = read(folder, Plan.load("standard"))
    members = make_federation(tmp_path / "federation")
    credentials = {site: enrol(members, tmp_path / site, site).credentials() for site in tables}
    with ThreadPoolExecutor(len(tables)) as threads:
        joined: list[Future[None]] = []

        def join(address: str) -> None:
            for site, table in tables.items():
                joined.append(
                    threads.submit(
                        take_part,
                        PublicTable(site, table),
                        Link(address, credentials[site]),
                        patience_s=30.0,
                    )
                )

        serve(plan, tmp_path / "run", ServerSettings("127.0.0.1:0", join, federation=members))
        for one in joined:
            one.result(timeout=60)
    for name in ("weights.csv", "edges.csv", "graph.graphml"):
        assert (tmp_path / "run" / name).read_bytes() == (standard / name).read_bytes(), name
