"""What every party computed with is in the result, because equal bits need equal versions."""

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import JoinRequest
from fedbnsl.protocol.versions import own_versions
from fedbnsl_client import join_run
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import ServerSettings
from fedbnsl_server.sites.roster import Member, Roster
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_workbench.report.page import write_report

NAMES = ("a", "b", "c")
PLAN = Plan(n_participants=2, rounds=2, refit_rounds=1, join_deadline_s=30.0, run_deadline_s=60.0, variables=NAMES)


@pytest.mark.parametrize("souths", ["0.0.7", own_versions()["fedbnsl"]])
def test_the_versions_of_all_parties_are_in_the_result_and_a_difference_is_warned_of(
    souths: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> dict[str, str]:
        south = threading.current_thread().name == "south"
        return {**own_versions(), **({"fedbnsl": souths} if south else {})}

    monkeypatch.setattr(join_run, "own_versions", told)
    threads: list[threading.Thread] = []

    def live(address: str) -> None:
        site = threading.current_thread().name
        table = Dataset(NAMES, np.random.default_rng(len(site)).standard_normal((60, 3)))
        join_run.take_part(PublicTable(site, table), Link(address), patience_s=30.0)

    def listening(address: str) -> None:
        for site in ("north", "south"):
            threads.append(threading.Thread(target=live, args=(address,), name=site))
            threads[-1].start()

    result = serve(PLAN, tmp_path / "run", ServerSettings("127.0.0.1:0", listening))
    for thread in threads:
        thread.join(30)
    manifest = result["manifest"]
    assert {site: versions["fedbnsl"] for site, versions in manifest["site_versions"].items()} == {
        "north": own_versions()["fedbnsl"],
        "south": souths,
    }
    here = own_versions()
    assert {name: manifest["site_versions"]["north"][name] for name in here} == here
    assert {name: manifest["versions"][name] for name in here} == here
    warned = [text for text in result["warnings"] if "different versions of fedbnsl" in text]
    assert bool(warned) == (souths == "0.0.7")
    assert all("south 0.0.7" in text and "north" not in text for text in warned)
    with closing(RunFolder.resume(tmp_path / "run", PLAN)) as folder:
        kept = {site: member.versions for site, member in folder.past.membership.members.items()}
    assert kept == manifest["site_versions"], "a run that is taken up again knows them"
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert ("versions, north, south" in page) == (not warned)
    assert ("versions, south</th><td>architecture" in page and "fedbnsl 0.0.7" in page) == bool(warned)


def test_a_site_that_comes_back_with_another_version_keeps_its_membership_and_is_noted_anew() -> None:
    changes: list[tuple[str, Member | None]] = []
    roster = Roster(PLAN, on_change=lambda site, member: changes.append((site, member)))
    for told in ({"fedbnsl": "1"}, {"fedbnsl": "1"}, {"fedbnsl": "2"}):
        roster.join(JoinRequest("north", NAMES, 60, versions=told))
    assert [member and member.versions for _, member in changes] == [{"fedbnsl": "1"}, {"fedbnsl": "2"}]
    assert roster.members["north"].versions == {"fedbnsl": "2"}
