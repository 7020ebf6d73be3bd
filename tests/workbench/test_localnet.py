from collections.abc import Sequence
from pathlib import Path

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_workbench.localnet import LocalNetwork, start_coordinator


def test_the_folder_of_a_coordinator_s_address_stays_for_as_long_as_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It syncs this folder to disk after its address can be read there, and fails if the folder is gone by then."""
    files: list[Path] = []

    def start(self: LocalNetwork, name: str, arguments: Sequence[str | Path]) -> None:
        [option] = [str(one) for one in arguments if str(one).startswith("--address-file=")]
        files.append(Path(option.partition("=")[2]))
        files[0].write_text("127.0.0.1:9", encoding="utf-8")

    def end(self: LocalNetwork) -> None:
        assert files[0].exists()

    monkeypatch.setattr(LocalNetwork, "start", start)
    monkeypatch.setattr(LocalNetwork, "end", end)
    with LocalNetwork(tmp_path / "logs") as network:
        assert start_coordinator(network, Plan(n_participants=2), tmp_path / "run", seeds={}) == "127.0.0.1:9"
    assert not files[0].parent.exists()
