"""The drawing of a network between the outputs of a notebook: several on one page, on a dark one, without scripts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from browser import LONG_MS
from class_runs import NAMES, SMALL, small_run
from fedbnsl_workbench.network import Network
from report_runs import HARD_NAMES, make_run

Opened = Callable[..., Page]
FADED = "e => getComputedStyle(e).opacity < 0.5"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a class with undirected edges, twice; and of a run with names that are hard to show."""
    of_class = Network.load(small_run(tmp_path_factory.mktemp("class")))
    script = "</script><script>document.title='broken'</script>"
    hard = Network.load(make_run(tmp_path_factory.mktemp("hard"), (*HARD_NAMES[:-1], script)))
    return [of_class._repr_html_(), of_class.plot().html, hard._repr_html_()]


@pytest.fixture
def opened(browser: Browser, outputs: list[str], tmp_path: Path) -> Iterator[Opened]:
    """Opens a dark page with these outputs; fails on any complaint of the page and on whatever it fetches."""
    path = tmp_path / "notebook.html"
    cells = "".join(f"<div class='output'>{one}</div>" for one in outputs)
    head = "<!doctype html><meta charset='utf-8'><title>notebook</title><link rel='icon' href='data:,'>"
    path.write_text(f"{head}<body style='background: #111; color: #eee'>{cells}", encoding="utf-8")
    contexts: list[Any] = []
    complaints, requests = list[str](), list[str]()

    def open_with(**options: Any) -> Page:
        context = browser.new_context(viewport={"width": 1100, "height": 900}, **options)
        context.set_default_timeout(LONG_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_with
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}


def test_each_drawing_tells_of_itself_alone(opened: Opened) -> None:
    page = opened()
    first, second, _ = page.locator(".fedbnsl-network").all()
    edge = SMALL["edges"][0]
    place = f'.edge[data-source="{NAMES.index(edge["source"])}"][data-target="{NAMES.index(edge["target"])}"]'
    second.locator(f"{place} .hit").hover(force=True)
    assert f"{edge['weight']:+.3f}" in second.locator(".told").inner_text()
    assert f"{edge['weight']:+.3f}" not in first.locator(".told").inner_text()
    first.locator('.node[data-name="a"]').click()
    faded = {one.get_attribute("data-name") for one in first.locator(".node").all() if one.evaluate(FADED)}
    assert faded == {"b", "e", "f"}, "no cause of a, and nothing that follows from it"
    assert not any(one.evaluate(FADED) for one in second.locator(".node").all())


def test_undirected_edges_have_no_head_and_pairs_outside_the_graph_are_not_drawn(opened: Opened) -> None:
    card = opened().locator(".fedbnsl-network").first
    for edge in SMALL["edges"]:
        place = f'.edge[data-source="{NAMES.index(edge["source"])}"][data-target="{NAMES.index(edge["target"])}"]'
        heads = card.locator(f"{place} path[fill]:not(.hit)").count()
        assert heads == int(edge["directed"]), edge
    assert card.locator(".unsure").count() == 0


def test_names_are_only_shown_whatever_they_hold(opened: Opened) -> None:
    page = opened()
    assert page.title() == "notebook"
    card = page.locator(".fedbnsl-network").nth(2)
    drawn = {one.get_attribute("data-name") for one in card.locator(".node").all()}
    assert drawn <= {*HARD_NAMES, "</script><script>document.title='broken'</script>"}
    assert len(drawn) > 12
    for one in card.locator(".node").all()[:8]:
        one.focus()
        assert card.locator(".told p").first.inner_text().startswith(one.get_attribute("data-name") or "?")


def test_without_scripts_it_is_a_still_drawing_with_titles_on_light_paper(opened: Opened) -> None:
    page = opened(java_script_enabled=False)
    card = page.locator(".fedbnsl-network").first
    assert card.locator(".edge title").count() == len(SMALL["edges"])
    assert card.locator("svg.dag").is_visible()
    assert not card.locator(".told").is_visible()
    # Where a notebook takes styles away, the drawing keeps the light paper that its lines are for.
    assert "background: var(--paper, #fff); color: var(--ink, #1b1f24)" in (card.get_attribute("style") or "")
    assert card.evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(255, 255, 255)"
