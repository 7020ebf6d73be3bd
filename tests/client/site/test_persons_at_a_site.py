"""A guarded table whose records are persons of several rows: what is registered of them is what a run reads."""

from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import LedgerError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from private_site import DATASET, edit, make_site

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")

NAMES = ("a", "b")
SIZES = np.arange(60) % 4 + 1
WHO = np.repeat(np.arange(60), SIZES)
ROWS = np.rint(64.0 * np.random.default_rng(3).normal(size=(len(WHO), 2))) / 64.0  # sums are exact
ENTRIES = {name: {"range": [-9, 9]} for name in NAMES} | {"patient": {"kind": "group"}}


def plan() -> Plan:
    settings = ["privacy.secure_aggregation=false", "privacy.persons_by='rows'"]
    return Plan.load("private", settings, epsilon=1.0, delta=1e-6).with_settings(n_participants=2, dictionary=ENTRIES)


def write(path: Path, who: np.ndarray, rows: np.ndarray) -> Path:
    lines = [f"p{k},{x!r},{y!r}" for k, (x, y) in zip(who.tolist(), rows.tolist(), strict=True)]
    path.write_text("\n".join(["patient,a,b", *lines, ""]), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 persons are registered first, and 20 more make a second block."""
    words = tmp_path / "given.toml"
    entries = "".join(f"[{name}]\nrange = [-9, 9]\n" for name in NAMES)
    words.write_text(entries + '[patient]\nkind = "group"\n', encoding="utf-8")
    first = WHO < 40
    make_site(tmp_path / "north", table=write(tmp_path / "ward.csv", WHO[first], ROWS[first]), dictionary=words)
    write(tmp_path / "ward.csv", WHO, ROWS)
    with site_folder.opened(tmp_path / "north") as (policy, ledger):
        table = site_folder.read_table(tmp_path / "north", policy, DATASET)
        site_folder.register(tmp_path / "north", policy, ledger, DATASET, table, grows=True)
    edit(tmp_path / "north" / "policy.toml", "min_rows = 100", "min_rows = 20")
    return tmp_path / "north"


def admit(folder: Path, *blocks: int, names: tuple[str, ...] = NAMES) -> Dataset:
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(plan().digest(), "plan")
        return GuardedTable(folder, policy, ledger, None, blocks=blocks).admit(plan(), 7, names)[0]


@pytest.mark.parametrize(("blocks", "of"), [((), range(60)), ((1,), range(40)), ((2,), range(40, 60))])
def test_a_run_reads_all_rows_of_the_persons_of_its_blocks(blocks: tuple[int, ...], of: range, folder: Path) -> None:
    order = np.random.default_rng(1).permutation(len(WHO))
    write(folder.parent / "ward.csv", WHO[order], ROWS[order])
    table = admit(folder, *blocks)
    assert table.rows is not None
    assert sorted(table.rows.sizes.tolist()) == sorted(SIZES[of].tolist())
    assert sorted(table.rows.X.tolist()) == sorted(ROWS[np.isin(WHO, of)].tolist())
    starts = np.cumsum(table.rows.sizes) - table.rows.sizes
    np.testing.assert_allclose(np.add.reduceat(table.rows.X, starts) / table.rows.sizes[:, None], table.X)


def test_rows_of_persons_have_their_columns_in_the_order_of_the_run(folder: Path) -> None:
    one, other = admit(folder), admit(folder, names=NAMES[::-1])
    assert one.rows is not None
    assert other.rows is not None
    np.testing.assert_array_equal(other.X, one.X[:, ::-1])
    np.testing.assert_array_equal(other.rows.X, one.rows.X[:, ::-1])


def swapped(who: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A person of the first block and one of the second, each with the rows of the other."""
    return np.where(who == 3, 43, np.where(who == 43, 3, who)), ROWS


def further_apart(who: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two rows of a person that differ more, with the same mean."""
    one, other, *_ = np.flatnonzero(who == 43)
    rows = ROWS.copy()
    rows[one] += 0.5
    rows[other] -= 0.5
    return who, rows


@pytest.mark.parametrize("blocks", [(), (2,)])
@pytest.mark.parametrize("changed", [swapped, further_apart])
def test_rows_of_persons_that_have_changed_are_not_read(changed: object, blocks: tuple[int, ...], folder: Path) -> None:
    assert callable(changed)
    write(folder.parent / "ward.csv", *changed(WHO))
    with pytest.raises(LedgerError, match="is not the one registered"):
        admit(folder, *blocks)
