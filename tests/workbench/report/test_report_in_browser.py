"""The report's page as a browser shows it: on a screen, on a phone and on paper."""

import re
from itertools import combinations

import pytest
from playwright.sync_api import expect

from browser import LONG_MS, hard_to_read
from class_runs import large_run
from fedbnsl_workbench.report.page import write_report
from report_runs import HARD_NAMES, PRIVATE, make_run

SCREENS = [(1280, 900), (390, 844)]
SMALL_PHONE = (320, 640)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Files by kind of run."""
    hard = make_run(tmp_path_factory.mktemp("hard"))
    tables = hard.parent / "tables"
    private = make_run(tmp_path_factory.mktemp("private"), rows=2000, **PRIVATE)
    many = make_run(tmp_path_factory.mktemp("many"), [f"V{k}" for k in range(70)], stop_after=12, rounds=14)
    of_class = large_run(tmp_path_factory.mktemp("class"), tuple(f"variable {k}" for k in range(14)))
    return {
        "class": write_report(of_class, truth=of_class.parent / "tables" / "truth.csv"),
        "hard names": write_report(hard, truth=tables / "truth.csv", data=tables),
        "private": write_report(private),
        "many": write_report(many),
    }


@pytest.fixture(params=["hard names", "private", "many", "class"])
def path(request, pages):
    return pages[request.param]


@pytest.fixture
def opened(browser, path):
    """Opens the page in a window of a size; fails on any complaint or request of the page."""
    context = browser.new_context()
    context.set_default_timeout(LONG_MS)
    requests, complaints = [], []

    def open_at(size):
        page = context.new_page()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_at
    context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}


def test_the_page_follows_a_dark_screen_with_its_drawings_and_is_printed_light(opened):
    page = opened(SCREENS[0])
    page.emulate_media(color_scheme="dark")
    chart = "getComputedStyle(document.querySelector('svg.chart')).filter"
    look = f"[getComputedStyle(document.body).backgroundColor, {chart}]"
    assert page.evaluate(look) == ["rgb(20, 24, 29)", "invert(1) hue-rotate(180deg)"]
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(look) == ["rgb(255, 255, 255)", "none"]


@pytest.mark.parametrize("size", [*SCREENS, SMALL_PHONE], ids=["screen", "phone", "small phone"])
def test_the_page_never_scrolls_sideways(opened, size):
    page = opened(size)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= size[0]
    # What is wider scrolls in a box of its own.
    spilling = page.evaluate(
        """[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, pre, .skip') && !e.closest('svg *')
        && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert spilling == []
    # Nor does it avoid that by words that are broken letter by letter.
    narrow = page.evaluate(
        """[...document.querySelectorAll('td, th')].filter(e => {
          const words = document.createRange();
          words.selectNodeContents(e);
          return words.getBoundingClientRect().height > 60 && e.offsetWidth < 60;
        }).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert [cell for cell in narrow if "name" not in cell] == []


def test_a_phone_shows_the_verdicts_and_says_what_scrolls(opened, path):
    page = opened(SCREENS[1])
    for mark in page.locator("#edges .mark").all()[:5]:
        box = mark.bounding_box()
        assert box["x"] + box["width"] <= SCREENS[1][0]
    told = page.evaluate(
        """[...document.querySelectorAll('figure')].filter(f => f.querySelector(':scope > .wide')).map(f => {
          const box = f.querySelector(':scope > .wide'), hint = f.querySelector('.swipe');
          return [box.scrollWidth > box.clientWidth, hint !== null && hint.offsetHeight > 0];
        })"""
    )
    assert len(told) == 2
    for scrolls, hint in told:
        assert scrolls == hint
    page.set_viewport_size({"width": SCREENS[0][0], "height": SCREENS[0][1]})
    assert not any(hint.is_visible() for hint in page.locator(".swipe").all())


@pytest.mark.parametrize("size", SCREENS, ids=["screen", "phone"])
def test_every_label_of_the_drawing_can_be_read(opened, size):
    page = opened(size)
    found = page.evaluate(
        """() => {
          const svg = document.querySelector('svg.dag'), view = svg.viewBox.baseVal;
          const box = e => { const b = e.getBBox(); return [b.x, b.y, b.x + b.width, b.y + b.height]; };
          return {view: [view.x, view.y, view.x + view.width, view.y + view.height],
                  labels: [...svg.querySelectorAll('.node')].map(n => [box(n.querySelector('text')),
                           box(n.querySelector('rect'))]),
                  height: svg.querySelector('.node rect').getBoundingClientRect().height};
        }"""
    )
    assert len(found["labels"]) > 1
    assert found["height"] > 20, "not scaled down until nobody can read it"
    for text, node in found["labels"]:
        assert node[0] <= text[0] < text[2] <= node[2], "a label is wider than its node"
        assert found["view"][0] <= node[0] < node[2] <= found["view"][2]
        assert found["view"][1] <= node[1] < node[3] <= found["view"][3]
    for (_, a), (_, b) in combinations(found["labels"], 2):
        assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1], "two nodes overlap"


def test_edges_and_cautions_are_there_for_the_eye(opened, path):
    page = opened(SCREENS[0])
    n_edges = len((path.parent / "edges.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert page.locator("#edges tbody tr").count() == n_edges > 0
    cautions = page.locator(".caution")
    assert cautions.count() > 0
    for k in range(cautions.count()):
        assert cautions.nth(k).is_visible()


@pytest.mark.parametrize("how", [{"media": "screen"}, {"color_scheme": "dark"}, {"media": "print"}], ids=str)
def test_words_stand_out_from_what_is_behind_them(opened, how):
    page = opened(SCREENS[0])
    page.emulate_media(**how)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    if how != {"media": "print"} and page.locator("svg.dag .node").count():
        page.locator("svg.dag .node").first.click()
        expect(page.locator(".chip").first).to_be_visible()
    assert hard_to_read(page) == []


def test_paper_holds_all_of_it(opened, path):
    page = opened(SCREENS[0])
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 without its margins, at 96 pixels an inch
    spilling = page.evaluate(
        """[...document.querySelectorAll('svg, table, pre, p')]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert spilling == []
    assert not page.locator("details.defaults").is_visible(), "a page of defaults"
    folded = page.locator("details:not(.defaults) td")
    assert folded.count() > 10
    assert all(folded.nth(k).bounding_box()["height"] > 0 for k in range(0, folded.count(), 9))
    for caution in page.locator(".caution").all():
        assert caution.is_visible()
    pdf = page.pdf(prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
    assert _holds_title(pdf, "a plan: report of a run")


def _holds_title(pdf, title):
    return title.encode() in pdf or title.encode("utf-16-be").hex().upper().encode() in pdf.upper()


def test_names_that_look_like_programs_are_only_shown(opened, path):
    page = opened(SCREENS[0])
    assert page.locator("script").count() == 1
    if "hard" in path.parts[-3]:
        assert page.locator(f"text={HARD_NAMES[0]}").count() > 0
        assert page.evaluate("document.body.innerText").count("<script>alert('x')</script>") > 0
