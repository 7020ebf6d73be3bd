"""The model card of a run: what it says, that it names no site unless it is asked to, and that it fits the appendix."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser

from class_runs import large_run, small_run
from fedbnsl.errors import SetupError
from fedbnsl_workbench.report.card import write_card
from fedbnsl_workbench.report.cli import report
from report_runs import PRIVATE, Page, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class over six variables, contradicted by what a site has."""
    folder = small_run(tmp_path_factory.mktemp("card"))
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    result["verdict"]["contradicted"] = ["site-2 differs from 'site-1', but not from a site-20"]
    result["verdict"]["not_tested"] = ["whether rows depend on each other"]
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def card_of(run: Path, out: Path, **options: Any) -> dict[str, Any]:
    return dict(json.loads(write_card(run, out, **options).read_text(encoding="utf-8")))


def test_the_card_says_what_the_result_has(run: Path, tmp_path: Path) -> None:
    card, result = card_of(run, tmp_path / "card.json"), json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert card["data"]["rows"] == 600
    assert [one["name"] for one in card["data"]["variables"]] == result["variables"]
    weights = {(one["source"], one["target"]): one["weight"] for one in card["graph"]["edges"]}
    assert weights == {(one["source"], one["target"]): one["weight"] for one in result["edges"]}
    assert card["digests"] == {"plan": result["manifest"]["plan_digest"], **result["manifest"]["sha256"]}
    assert card["software"]["coordinator"] == result["manifest"]["versions"]
    assert card["assumptions"]["not_tested"] == ["Whether rows depend on each other."]
    assert "name" not in {one["name"] for one in card["settings"]}
    assert card["privacy"] is None


def test_a_variable_that_noise_hides_is_among_the_cautions(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other)
    result = json.loads((other / "result.json").read_text(encoding="utf-8"))
    result["unused"] = [{"variable": result["variables"][0], "level": None, "why": "hidden"}]
    (other / "result.json").write_text(json.dumps(result), encoding="utf-8")
    card = card_of(other, tmp_path / "card.json")
    assert any(repr(result["variables"][0]) in text and text.endswith(".") for text in card["cautions"])


def test_sites_have_aliases_unless_they_are_to_be_named(run: Path, tmp_path: Path) -> None:
    card = card_of(run, tmp_path / "card.json")
    assert [one["site"] for one in card["data"]["sites"]] == ["site 1", "site 2", "site 3"]
    assert card["assumptions"]["contradicted"] == ["Site 2 differs from 'site 1', but not from a site-20."]
    page = write_card(run, tmp_path / "card.html").read_text(encoding="utf-8")
    assert not re.search(r"site-[123]\b", page.replace("site-20", ""))
    named = card_of(run, tmp_path / "named.json", name_sites=True)
    assert [one["site"] for one in named["data"]["sites"]] == ["site-1", "site-2", "site-3"]


def test_a_plan_for_privacy_without_a_guarantee_says_why(tmp_path: Path) -> None:
    private = make_run(tmp_path, rows=2000, **PRIVATE)
    card = card_of(private, tmp_path / "card.json")
    assert card["privacy"]["guarantee"] == ""
    assert "a simulation keeps no ledger" in card["privacy"]["no_guarantee_because"]
    text = " ".join(Page(write_card(private).read_text(encoding="utf-8")).text.split())
    assert "There is no privacy guarantee , although the plan asks for one: a simulation keeps no ledger" in text


def test_names_on_the_page_are_only_shown(browser: Browser, tmp_path: Path) -> None:
    hard = make_run(tmp_path)
    complaints, page = list[str](), browser.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(write_card(hard).as_uri())
    assert "<script>alert('x')</script>" in page.locator("body").inner_text()
    assert page.locator("script").count() == 0
    assert complaints == []
    page.close()


@pytest.mark.parametrize("size", ["small", "large"])
def test_it_is_one_to_three_pages_of_paper_and_nothing_is_cut_off(
    browser: Browser, run: Path, tmp_path: Path, size: str
) -> None:
    folder = run if size == "small" else large_run(tmp_path, tuple(f"a variable {k}" for k in range(45)))
    page = browser.new_page()
    page.goto(write_card(folder, tmp_path / "card.html").as_uri())
    pdf = page.pdf(prefer_css_page_size=True)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 3
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 without its margins, at 96 pixels an inch
    spilling = page.evaluate(
        "[...document.querySelectorAll('svg, table, p, li, code')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert spilling == []
    page.close()


def test_the_command_writes_it_beside_the_report(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(report, [str(run), "--card"])
    assert done.output == f"wrote {run / 'card.html'}\n"
    assert (run / "card.html").is_file()
    for options in (["--name-sites"], ["--card", "--truth", "truth.csv"]):
        assert CliRunner().invoke(report, [str(run), *options]).exit_code == 2
    with pytest.raises(SetupError, match=r"is written as \.html or \.json"):
        write_card(run, tmp_path / "card.pdf")
