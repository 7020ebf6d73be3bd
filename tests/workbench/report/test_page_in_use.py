"""What the page's script does in a browser, and that nothing is lost without it."""

import re

import networkx as nx
import pytest
from playwright.sync_api import expect

from browser import LONG_MS
from class_runs import NAMES, SMALL, small_run
from fedbnsl_workbench.report.page import write_report

SCREEN, PHONE = (1280, 900), (320, 640)
FADED = "getComputedStyle(e).opacity < 0.5"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_report(small_run(tmp_path_factory.mktemp("use")))


@pytest.fixture
def opened(browser, path):
    """Opens the page; fails on any complaint of the page, and on whatever it asks the network for."""
    contexts, complaints, requests = [], [], []

    def open_at(size=SCREEN, **options):
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        context.set_default_timeout(LONG_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}


def line(page, source, target):
    """The edge between two variables in the drawing."""
    return page.locator(f'.edge[data-source="{NAMES.index(source)}"][data-target="{NAMES.index(target)}"]')


def node(page, name):
    return page.locator(f'.node[data-name="{name}"]')


def names_of(page, kind):
    return {found.get_attribute("data-name") for found in page.locator(f".node.{kind}").all()}


def words(text):
    return " ".join(text.replace("\u00a0", " ").split())


# ---- edges ---------------------------------------------------------------------------------------------------------

A_TO_C = " \u00b7 ".join(
    (
        "a \u2192 c: weight +0.900, 95 % 0.80 to 1.00",
        "directed by the data",
        "in 100 % of the draws: \u2192 50 %, \u2190 25 %, \u2014 25 %",
        "over the sites I\u00b2 33 %, p = 0.22",
        "kept in 2 of 3 searches without a site",
    )
)


def point_at(page, edge):
    """Move the mouse onto the middle of the line, where a person would."""
    edge.evaluate(
        "async e => { e.scrollIntoView({block: 'center'});"  # and once it is drawn there:
        "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))); }"
    )
    x, y = edge.locator("path").first.evaluate(
        "e => { const p = e.getPointAtLength(e.getTotalLength() / 2).matrixTransform(e.getScreenCTM());"
        "return [p.x, p.y]; }"
    )
    page.mouse.move(x + 4, y)  # beside it: a thin line need not be hit to the pixel


def test_pointing_at_an_edge_shows_its_numbers(opened):
    page = opened()
    assert "0.900" not in page.locator("#told").inner_text()
    point_at(page, line(page, "a", "c"))
    expect(page.locator("#told-edge")).to_have_text(A_TO_C)
    point_at(page, line(page, "d", "f"))
    expect(page.locator("#told-edge")).to_contain_text("d \u2014 f: weight +0.250")
    assert page.locator("#told").evaluate("e => e.getBoundingClientRect().bottom <= innerHeight")


def test_the_keyboard_reaches_every_edge_by_one_tab_stop(opened):
    page = opened()
    assert page.locator('.edge[tabindex="0"]').count() == page.locator('.node[tabindex="0"]').count() == 1
    page.locator('.edge[tabindex="0"]').focus()
    told = set()
    for _ in SMALL["edges"]:
        told.add(words(page.locator("#told-edge").inner_text()))
        assert page.evaluate("document.activeElement.getAttribute('role')") == "img"
        spoken = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert words(page.locator("#told-edge").inner_text()).startswith(f"{spoken.split(';')[0]}:")
        page.keyboard.press("ArrowRight")
    assert len(told) == len(SMALL["edges"]), "the pairs that are not shown are passed over"
    assert A_TO_C in told


# ---- variables -----------------------------------------------------------------------------------------------------


def test_a_chosen_variable_shows_where_it_comes_from_and_what_follows(opened):
    page = opened()
    graph = nx.DiGraph([(e["source"], e["target"]) for e in SMALL["edges"] if e["directed"]])
    graph.add_nodes_from(NAMES)
    linked = {frozenset((e["source"], e["target"])) for e in SMALL["edges"] if not e["directed"]}
    for name in NAMES:
        node(page, name).click()
        parents, children = set(graph.predecessors(name)), set(graph.successors(name))
        assert names_of(page, "self") == {name}
        assert names_of(page, "parent") == parents
        assert names_of(page, "child") == children
        assert names_of(page, "ancestor") == nx.ancestors(graph, name) - parents
        assert names_of(page, "descendant") == nx.descendants(graph, name) - children
        assert names_of(page, "linked") == {other for pair in linked if name in pair for other in pair - {name}}
    node(page, "f").click()
    assert page.locator("svg.dag.chosen").count() == 0, "a second click ends it"


def test_the_words_beside_the_drawing_name_relatives_and_the_rest_fades(opened):
    page = opened()
    node(page, "d").click()
    assert words(page.locator("#told-variable").inner_text()) == (
        "d; parents c, e; further ancestors a, b; children none; further descendants none; linked without a direction f"
    )
    assert page.locator("#told-variable").get_attribute("role") == "status"
    node(page, "a").click()
    faded = {e.get_attribute("data-name") for e in page.locator(".node").all() if e.evaluate(f"e => {FADED}")}
    assert faded == {"b", "e", "f"}
    assert not line(page, "a", "c").evaluate(f"e => {FADED}")
    assert line(page, "b", "c").evaluate(f"e => {FADED}")


def test_variables_are_chosen_by_keyboard_and_said_to_be_pressed(opened):
    page = opened()
    node(page, "c").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.name") == "d"
    page.keyboard.press("Enter")
    assert node(page, "d").get_attribute("aria-pressed") == "true"
    assert names_of(page, "ancestor") == {"a", "b"}
    page.keyboard.press("Escape")
    assert node(page, "d").get_attribute("aria-pressed") == "false"
    assert page.locator(".node[role=button]").count() == len(NAMES)
    assert page.locator("svg.dag").get_attribute("role") == "group"


# ---- the slider ----------------------------------------------------------------------------------------------------


def test_the_slider_fades_the_edges_that_fewer_draws_have(opened):
    page = opened()
    shares = {(e["source"], e["target"]): (e["bootstrap"] or {}).get("adjacent") for e in SMALL["edges"]}
    for least in (0, 44, 45, 97, 100):
        page.locator("#share").fill(str(least))
        for ends, share in shares.items():
            few = share is not None and share < least / 100
            assert line(page, *ends).evaluate(f"e => {FADED}") == few, (least, ends)
        n_faded = sum(share is not None and share < least / 100 for share in shares.values())
        assert f"{n_faded} edge" in page.locator("#share-told").inner_text()
        assert page.locator("#share").get_attribute("aria-valuetext") == f"{least} per cent"


def test_pairs_outside_the_graph_are_shown_when_asked_for_and_found_often_enough(opened):
    page = opened()
    often, seldom = line(page, "a", "b"), line(page, "a", "f")
    assert not often.is_visible()
    page.locator("#share").fill("30")
    assert not often.is_visible(), "only when asked for"
    page.get_by_label("pairs that are not in the graph").check()
    assert often.is_visible()
    assert not seldom.is_visible()
    page.locator("#share").fill("12")
    assert seldom.is_visible()
    assert often.locator("path").first.get_attribute("stroke-dasharray")
    assert "2 pairs that are not in the graph shown" in page.locator("#share-told").inner_text()


# ---- tables --------------------------------------------------------------------------------------------------------


def column(page, table, place):
    return [words(cell) for cell in page.locator(f"#{table} tbody tr td:nth-child({place})").all_inner_texts()]


def test_a_column_s_head_sorts_by_it_and_then_the_other_way(opened):
    page = opened()
    head = page.locator("#edges thead th").filter(has_text="bootstrap share")
    head.get_by_role("button").click()
    assert column(page, "edges", 5) == ["100 %", "96 %", "62 %", "44 %", "not known"]
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").press("Enter")
    assert column(page, "edges", 5) == ["44 %", "62 %", "96 %", "100 %", "not known"]
    page.locator("#edges thead th").filter(has_text="source").get_by_role("button").click()
    assert column(page, "edges", 1) == list("abcde")
    assert page.locator("#edges th[aria-sort]").count() == 1
    estimate = page.locator("#edges thead th").filter(has_text="estimate")
    estimate.get_by_role("button").click()
    assert [cell.split()[0] for cell in column(page, "edges", 4)] == ["+0.900", "+0.500", "+0.400", "+0.250", "-0.700"]


# ---- without it, on a phone, on paper -------------------------------------------------------------------------------


def content(page):
    """The words of every table and of the head; what is folded is opened first."""
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    return [words(text) for text in page.locator("header, table, .names, .legend").all_inner_texts()]


def test_without_the_script_the_same_is_there_and_no_control_that_does_nothing(opened):
    live, still = opened(), opened(java_script_enabled=False)
    assert content(live) == content(still)
    assert "41 %" in " ".join(content(still)), "pairs outside the graph too"
    for selector in ("#controls", "#told", ".scripted", "th button"):
        assert not any(found.is_visible() for found in still.locator(selector).all())
        assert live.locator(selector).first.is_visible()
    titles = [words(title) for title in still.locator(".edge title").all_text_contents()]
    assert any(title.startswith("a \u2192 c weight +0.900, 95 % 0.80 to 1.00") for title in titles)
    assert not line(still, "a", "b").is_visible()


def test_only_the_page_s_own_script_may_run(opened, path):
    html = path.read_text(encoding="utf-8")
    assert len(re.findall("<script", html)) == 1
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    assert opened().locator("#controls").is_visible(), "it ran"


def test_a_script_that_got_onto_the_page_would_not_run(browser, path, tmp_path):
    changed = tmp_path / "page.html"
    bad = '<script>document.title = "bad"</script><img src="data:," onerror="document.title = \'bad\'">'
    changed.write_text(path.read_text(encoding="utf-8").replace("<main>", f"<main>{bad}"), encoding="utf-8")
    context, refused = browser.new_context(), []
    page = context.new_page()
    page.on("console", lambda message: refused.append("Content Security Policy" in message.text))
    page.goto(changed.as_uri(), timeout=LONG_MS)  # until everything on it is loaded, the wrong image too
    page.evaluate("0")  # what the console was told before has arrived
    assert refused == [True, True]
    assert page.title() == "a plan: report of a run"
    context.close()


def test_a_phone_shows_all_of_it_without_scrolling_sideways_and_by_touch(opened):
    page = opened(PHONE, has_touch=True)
    assert page.evaluate("document.scrollingElement.scrollWidth") == PHONE[0]
    node(page, "c").tap()
    assert names_of(page, "parent") == {"a", "b"}
    told = page.locator("#told").bounding_box()
    assert told["x"] >= 0
    assert told["x"] + told["width"] <= PHONE[0]
    page.get_by_label("pairs that are not in the graph").check()
    for control in page.locator("#controls input").all():
        box = control.bounding_box()
        assert box["x"] + box["width"] <= PHONE[0]
    line(page, "a", "c").locator("path").first.dispatch_event("click")
    assert words(page.locator("#told-edge").inner_text()) == A_TO_C


def test_paper_shows_the_whole_graph_whatever_was_chosen_on_the_screen(opened):
    page = opened()
    page.locator("#share").fill("100")
    page.get_by_label("pairs that are not in the graph").check()
    page.locator("#share").fill("10")
    page.locator("#share").fill("100")
    node(page, "e").click()
    assert line(page, "a", "c").evaluate(f"e => {FADED}")
    page.emulate_media(media="print")
    assert not any(found.evaluate(f"e => {FADED}") for found in page.locator(".edge, .node").all())
    for selector in ("#controls", "#told", ".scripted", ".unsure"):
        assert not any(found.is_visible() for found in page.locator(selector).all())
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.get_by_text("site-1 +0.800 (SE 0.08)").is_visible()
