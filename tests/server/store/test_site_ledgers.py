"""The coordinator's memory of the sites' ledgers: one that was set back is noticed, a repeated old answer is not."""

from pathlib import Path

import pytest

from fedbnsl.errors import LedgerError, ResultError
from fedbnsl.protocol.messages import LedgerHead
from fedbnsl_server.store.site_ledgers import SiteLedgers


def head(
    n_entries: int, spent_units: int, *, digest: int | None = None, ledger: int = 7, dataset: int = 1
) -> LedgerHead:
    link = bytes([n_entries if digest is None else digest]) * 32
    return LedgerHead(bytes([ledger]) * 16, bytes([dataset]) * 16, n_entries, link, spent_units)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site-ledgers.json"


@pytest.fixture
def ledgers(path: Path) -> SiteLedgers:
    seen = SiteLedgers(path)
    seen.note("north", head(10, 500))
    return seen


def test_a_site_that_was_never_seen_and_one_that_went_on_are_welcome(ledgers: SiteLedgers) -> None:
    ledgers.check("south", head(0, 0))
    ledgers.check("north", head(10, 500))
    ledgers.check("north", head(11, 500))
    ledgers.check("north", head(12, 900))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (head(9, 500), "9 payments, then 10"),
        (head(9, 400), "a backup was restored"),
        (head(11, 499), "its budget cannot be trusted"),
        (head(10, 500, digest=99), "a backup was restored"),
        (head(10, 500, ledger=8), "had another privacy ledger before"),
        (head(99, 9999, ledger=8), "what it spent must not be forgotten"),
    ],
    ids=["shorter", "older", "spent less", "forked", "new", "new and longer"],
)
def test_a_ledger_that_was_set_back_forked_or_replaced_is_refused(
    other: LedgerHead, said: str, ledgers: SiteLedgers
) -> None:
    with pytest.raises(LedgerError, match=said) as caught:
        ledgers.check("north", other)
    assert "'north'" in str(caught.value)
    ledgers.check("south", other)


def test_each_dataset_of_a_site_has_its_own_payments(ledgers: SiteLedgers, path: Path) -> None:
    ledgers.check("north", head(0, 0, dataset=2))
    ledgers.note("north", head(3, 20, dataset=2))
    ledgers.save()
    for memory in (ledgers, SiteLedgers(path)):
        memory.check("north", head(3, 20, dataset=2))
        memory.check("north", head(10, 500))
        for other in (head(2, 20, dataset=2), head(9, 500), head(10, 500, ledger=8, dataset=3)):
            with pytest.raises(LedgerError):
                memory.check("north", other)


def test_a_site_has_spent_what_the_dataset_of_its_present_run_has(ledgers: SiteLedgers) -> None:
    assert ledgers.head("north") == head(10, 500)
    ledgers.note("north", head(3, 20, dataset=2))
    ledgers.save()
    assert ledgers.head("north") == head(3, 20, dataset=2)
    ledgers.note("north", head(10, 500))
    assert ledgers.head("north") == head(10, 500)
    assert ledgers.head("south") is None


def test_of_what_an_older_coordinator_wrote_the_ledger_is_still_known(path: Path) -> None:
    path.write_text(
        '{"north": {"ledger_id": "' + "07" * 16 + '", "n_entries": 50, "digest": "00", "spent_units": 900}}', "utf-8"
    )
    memory = SiteLedgers(path)
    memory.check("north", head(10, 500))
    with pytest.raises(LedgerError, match="another privacy ledger"):
        memory.check("north", head(10, 500, ledger=8))


def test_a_repeated_answer_brings_an_old_head_which_changes_nothing(ledgers: SiteLedgers) -> None:
    ledgers.note("north", head(8, 300))
    with pytest.raises(LedgerError):
        ledgers.check("north", head(9, 400))


def test_an_answer_from_another_ledger_does_not_replace_the_one_that_is_known(ledgers: SiteLedgers) -> None:
    ledgers.note("north", head(99, 0, ledger=8))
    ledgers.check("north", head(10, 500))
    with pytest.raises(LedgerError, match="another privacy ledger"):
        ledgers.check("north", head(99, 0, ledger=8))


def test_what_is_remembered_survives_the_coordinator(ledgers: SiteLedgers, path: Path) -> None:
    ledgers.save()
    again = SiteLedgers(path)
    again.check("north", head(10, 500))
    with pytest.raises(LedgerError):
        again.check("north", head(9, 400))
    before = path.read_bytes()
    again.save()
    assert path.read_bytes() == before


def test_without_ledgers_no_file_is_made(path: Path) -> None:
    SiteLedgers(path).save()
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"north": 3}',
        '{"north": {"ledger_id": "00"}}',
        '{"north": {"ledger_id": "zz", "datasets": {}}}',
        '{"north": {"ledger_id": "00", "datasets": {"00": {"n_entries": "many", "digest": "00", "spent_units": 1}}}}',
        "\ud800",
    ],
)
def test_a_damaged_memory_is_an_error_and_not_an_empty_one(text: str, path: Path) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ResultError, match=r"site-ledgers\.json, the memory of the sites' ledgers, cannot be read"):
        SiteLedgers(path)


def test_two_coordinators_of_one_folder_keep_what_the_other_has_seen(ledgers: SiteLedgers, path: Path) -> None:
    other = SiteLedgers(path)  # before the first has saved
    ledgers.save()
    other.note("south", head(3, 20))
    other.save()
    for memory in (other, SiteLedgers(path)):
        with pytest.raises(LedgerError, match="a backup was restored"):
            memory.check("north", head(9, 400))
        with pytest.raises(LedgerError, match="a backup was restored"):
            memory.check("south", head(2, 10))


def test_a_memory_that_nobody_has_written_to_is_not_read_again(
    ledgers: SiteLedgers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand sites join without a thousand readings of the ledgers of a thousand sites."""
    ledgers.save()
    memory, read, readings = SiteLedgers(path), SiteLedgers._read, []
    monkeypatch.setattr(SiteLedgers, "_read", lambda self: readings.append(1) or read(self))
    for _ in range(3):
        memory.check("north", head(10, 500))
    assert not readings
    ledgers.note("south", head(3, 20))
    ledgers.save()
    readings.clear()
    with pytest.raises(LedgerError, match="a backup was restored"):
        memory.check("south", head(2, 10))
    assert len(readings) == 1


def test_a_ledger_is_held_to_what_another_coordinator_has_just_written(ledgers: SiteLedgers, path: Path) -> None:
    other = SiteLedgers(path)  # before the first has saved, and it saves nothing itself
    ledgers.save()
    with pytest.raises(LedgerError, match="a backup was restored"):
        other.check("north", head(9, 400))
