"""A site's folder: made as a whole or not at all, and never overwritten."""

import os
from pathlib import Path

import pytest

from fedbnsl.errors import DataError, LedgerError, SetupError
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.site import folder as site_folder
from private_site import DATASET, NAMES, ROWS, make_site, rows, write_table


def test_the_new_policy_is_commented_and_denies_by_default(tmp_path: Path) -> None:
    make_site(tmp_path, max_epsilon_against_all=9.0)
    text = (tmp_path / "policy.toml").read_text(encoding="utf-8")
    settings = [line.partition(" = ")[0] for line in text.splitlines() if " = " in line and not line.startswith("#")]
    lines = text.splitlines()
    for k, line in enumerate(lines):
        if line and not line.startswith(("#", "[", " ", "]", "min_rows", "max_delta")):
            assert lines[k - 1].startswith("#"), f"{line} is explained"
    asked = {*Policy.model_fields} - {"datasets"} | {
        *Policy.model_fields["datasets"].annotation.__args__[0].model_fields
    }
    assert {*settings, "max_epsilon_per_person"} == asked, "every rule is there to be read"
    assert "\n# max_epsilon_per_person = 5.0  # the default" in text, "which follows max_epsilon"
    policy = Policy.load(tmp_path / "policy.toml")
    assert (policy.allow_non_private, policy.auto_approve) == (False, False)
    assert policy.allowed_solvers == ("dp-pgcd",)
    assert not policy.datasets[0].public


def test_without_a_delta_it_is_one_over_the_square_of_the_rows(tmp_path: Path) -> None:
    policy = make_site(tmp_path, max_delta=None)
    assert policy.datasets[0].max_delta == 1 / ROWS**2
    assert policy.datasets[0].max_epsilon_per_run == 5.0


@pytest.mark.parametrize("name", ['north"ward', "a'b", "back\\slash", "two words", "ö"])
def test_any_dataset_name_survives_the_policy(name: str, tmp_path: Path) -> None:
    make_site(tmp_path, dataset_id=name)
    assert Policy.load(tmp_path / "policy.toml").datasets[0].id == name


def test_a_table_within_the_folder_moves_with_it(tmp_path: Path) -> None:
    make_site(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    with site_folder.opened(tmp_path / "new") as (policy, _):
        assert site_folder.read_table(tmp_path / "new", policy, DATASET, max_file_bytes=10**6).variables == NAMES


def test_a_table_elsewhere_is_found_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "tables" / "ward.csv", rows())
    monkeypatch.chdir(tmp_path)
    make_site(Path("north"), table=Path("tables/ward.csv"))
    monkeypatch.chdir("/")
    folder = tmp_path / "north"
    with site_folder.opened(folder) as (policy, _):
        assert site_folder.read_table(folder, policy, DATASET, max_file_bytes=10**6).n_samples == ROWS


@pytest.mark.parametrize("there", ["policy.toml", "ledger.db"])
def test_nothing_is_overwritten(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("precious", encoding="utf-8")
    with pytest.raises(SetupError, match=f"{there} is there already"):
        make_site(tmp_path)
    assert (tmp_path / there).read_text(encoding="utf-8") == "precious"
    assert not (tmp_path / ({"policy.toml", "ledger.db"} - {there}).pop()).exists()


def test_a_folder_is_made_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text = site_folder.durable.write_text

    def full(path: Path, text: str) -> None:
        if path.name == "policy.toml":
            raise OSError(28, os.strerror(28))
        write_text(path, text)

    with monkeypatch.context() as broken:
        broken.setattr(site_folder.durable, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            make_site(tmp_path / "north")
    make_site(tmp_path / "north")
    with site_folder.opened(tmp_path / "north") as (_, ledger):
        assert ledger.registrations.find(DATASET) is not None


@pytest.mark.parametrize(
    "wrong", [{"site": "../x"}, {"max_epsilon": -1.0}, {"max_delta": 0.7}, {"columns": ["height"]}, {"dataset_id": ""}]
)
def test_a_value_that_cannot_be_used_leaves_nothing_behind(wrong: dict[str, object], tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv", rows())
    with pytest.raises((SetupError, DataError)):
        make_site(tmp_path / "north", table=table, **wrong)
    assert not (tmp_path / "north" / "ledger.db").exists()
    assert not (tmp_path / "north" / "policy.toml").exists()


def test_a_missing_ledger_is_not_made_anew(tmp_path: Path) -> None:
    make_site(tmp_path)
    (tmp_path / "ledger.db").unlink()
    with pytest.raises(LedgerError), site_folder.opened(tmp_path):
        pass
    assert not (tmp_path / "ledger.db").exists()


def test_a_plan_can_be_approved_while_a_run_has_the_folder(tmp_path: Path) -> None:
    make_site(tmp_path)
    with site_folder.opened(tmp_path) as (_, in_the_run), site_folder.opened(tmp_path) as (_, at_the_desk):
        at_the_desk.approvals.approve(bytes(32), "the next one")
        assert bytes(32).hex() in in_the_run.approvals.current()
