"""The R lines of the page about R are run on a finished run, where R and the packages of a block are installed."""

import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[2] / "docs"
_BASE, *_OTHERS = re.findall(
    r"```r\n(.*?)```", (_DOCS / "how-to" / "result-in-r.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs/mine: named as formulas, as T, without an edge; open edges."""
    if shutil.which("Rscript") is None:
        pytest.skip("needs R (Debian: r-base-core)")
    folder = tmp_path_factory.mktemp("r")
    header, *rows = (_DOCS / "tutorial" / "cohort.csv").read_text(encoding="utf-8").splitlines()
    lines = [header.replace("weight", "=weight").replace("sleep", "T") + ",alone"]
    lines += [f"{row},{k * 7919 % 1009}" for k, row in enumerate(rows)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for command in ("data split table.csv --sites 3 --out data", "simulate standard --data data --out runs/mine"):
        subprocess.run([sys.executable, "-m", "fedbnsl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


def run_r(script: str, folder: Path) -> str:
    ended = subprocess.run(
        ["Rscript", "-"], input=script, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_base_r_reads_the_graph_as_it_was_learned(finished: Path) -> None:
    run_r(
        _BASE + 'write.csv(which(graph == 1, arr.ind = TRUE), "arrows.csv"); writeLines(variables, "names.txt")',
        finished,
    )

    names = (finished / "names.txt").read_text(encoding="utf-8").split()
    with (finished / "arrows.csv").open(encoding="utf-8") as file:
        arrows = {(names[int(row["row"]) - 1], names[int(row["col"]) - 1]) for row in csv.DictReader(file)}
    with (finished / "runs" / "mine" / "edges.csv").open(encoding="utf-8") as file:
        learned = [
            (row["source"].lstrip("'"), row["target"].lstrip("'"), row["directed"]) for row in csv.DictReader(file)
        ]
    assert {"0", "1"} == {directed for *_, directed in learned}
    assert {"=weight", "T"} <= set(names)
    assert arrows == {(a, b) for a, b, _ in learned} | {(b, a) for a, b, directed in learned if directed == "0"}


@pytest.mark.parametrize("block", _OTHERS, ids=re.findall(r"library\((\w+)\)", "".join(_OTHERS)))
def test_blocks_that_need_a_package_run(block: str, finished: Path) -> None:
    (package,) = re.findall(r"library\((\w+)\)", block)
    if run_r(f'cat(requireNamespace("{package}", quietly = TRUE))', finished) != "TRUE":
        pytest.skip(f"needs the R package {package}")

    printed = run_r(f"{_BASE}\n{block}", finished)

    assert "=weight" in printed
