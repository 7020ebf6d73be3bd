"""What a person sees of a run: live on a terminal, a few lines on a pipe, a summary at the end."""

import re
import threading
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.messages import RunStatus, SiteProgress
from fedbnsl_experiments.display import RunDisplay, print_summary
from fedbnsl_experiments.metrics import score

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def site(name, *, answered=True, left=False, up=0, down=0):
    return SiteProgress(site=name, answered=answered, left=left, last_seen_s=0.0, bytes_up=up, bytes_down=down)


def status(t, *, of=10, elapsed_s=0.0, sites=None, state="running"):
    sites = (site("site-1"), site("site-2", answered=False)) if sites is None else sites
    return RunStatus(state, t, of, acyclicity=1.25e-3, edges=17, elapsed_s=elapsed_s, sites=tuple(sites))


def on_a_pipe(*statuses):
    text = StringIO()
    with RunDisplay("a run", Console(file=text, force_terminal=False, width=100)) as display:
        for each in statuses:
            display.show(each)
    return text.getvalue()


@pytest.fixture(autouse=True)
def _nothing_goes_on_drawing():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
        assert not thread.is_alive()


def on_a_terminal(*statuses, title="a run"):
    """All that was written, without the codes that move the cursor, colour or hide."""
    text = StringIO()
    with RunDisplay(title, Console(file=text, force_terminal=True, width=100)) as display:
        for each in statuses:
            display.show(each)
    return ANSI.sub("", text.getvalue())


def test_a_pipe_gets_a_line_now_and_then_and_no_control_codes():
    text = on_a_pipe(*(status(t, of=200) for t in range(1, 201) for _ in range(3)))
    assert "\x1b" not in text
    lines = text.splitlines()
    assert 9 <= len(lines) <= 12
    rounds = [int(re.match(r"round (\d+)/200 ", line)[1]) for line in lines]
    assert rounds == sorted(set(rounds))
    assert rounds[0] == 1
    assert rounds[-1] == 200


def test_a_short_run_has_a_line_for_each_round():
    lines = on_a_pipe(*(status(t, of=4) for t in range(1, 5))).splitlines()
    assert [line.split()[1] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]


def test_a_line_tells_rounds_sites_acyclicity_edges_bytes_and_time_left():
    sites = [site("a", up=1000, down=200), site("b", answered=False, up=30, down=4), site("c")]
    # 4 rounds are done in 8 s: the other 6 take 12 s.
    (line,) = on_a_pipe(status(5, elapsed_s=8.0, sites=sites)).splitlines()
    assert line.split("  ") == [
        "round 5/10",
        "answered 2/3",
        "h(W) 1.3e-03",
        "edges 17",
        "1.2 kB",
        "8 s, about 12 s left",
    ]


def test_nothing_is_foretold_before_a_round_is_done():
    (line,) = on_a_pipe(status(1, elapsed_s=3.0)).splitlines()
    assert line.endswith("  3 s")


def test_before_the_first_round_those_who_joined_are_counted():
    (line,) = on_a_pipe(status(0, state="joining")).splitlines()
    assert line == "joining: 2 joined"


def test_a_long_line_is_not_broken_on_a_pipe():
    text = StringIO()
    with RunDisplay("a run", Console(file=text, force_terminal=False, width=20)) as display:
        display.show(status(5))
    assert len(text.getvalue().splitlines()) == 1


def test_a_terminal_shows_every_site_beside_the_state_of_the_run():
    sites = [
        site("clinic", up=1_234_000, down=56_000),
        site("ward", answered=False, up=2_000),
        site("lab", answered=False, left=True),
    ]
    text = on_a_terminal(status(2, sites=sites), status(5, elapsed_s=8.0, sites=sites), title="plan [x/y]: 3 sites")
    last = text[text.rindex("plan [x/y]: 3 sites") :]
    for words in ("round 5/10", "answered 1/3", "h(W) 1.3e-03", "edges 17", "1.29 MB", "8 s, about 12 s left"):
        assert words in last, words
    rows = {line.split()[0]: line.split()[1:] for line in last.splitlines() if line.split()}
    assert rows["site"] == ["this", "round", "up", "down"]
    assert rows["clinic"] == ["answered", "1.23", "MB", "56.0", "kB"]
    assert rows["ward"] == ["working", "2.0", "kB", "0.0", "kB"]
    assert rows["lab"] == ["left", "0.0", "kB", "0.0", "kB"]
    assert "━" in last, "a bar"


def test_the_bar_on_a_terminal_grows_with_the_rounds():
    def filled(t):
        text = StringIO()
        with RunDisplay(
            "a run", Console(file=text, force_terminal=True, width=100, color_system="truecolor")
        ) as display:
            display.show(status(t))
        drawn = text.getvalue()
        bar = next(line for line in reversed(drawn.splitlines()) if "━" in line)
        done = re.search(r"\x1b\[[0-9;]*m([━╸]+)", bar)[1]  # the first stretch of one colour
        return len(done)

    assert filled(2) < filled(6) < filled(10)


def test_a_terminal_shows_the_first_sites_of_many_and_how_many_more_there_are():
    text = on_a_terminal(status(3, sites=[site(f"s{k:02}") for k in range(40)]))
    shown = {f"s{k:02}" for k in range(40) if f"s{k:02}" in text}
    (more,) = set(re.findall(r"\.\.\. (\d+) more", text))
    assert len(shown) + int(more) == 40
    assert 0 < len(shown) < 40


def test_a_terminal_is_left_as_it_was_even_after_an_error():
    text = StringIO()

    def fail_in_round_3():
        with RunDisplay("a run", Console(file=text, force_terminal=True, width=100)) as display:
            display.show(status(3))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_round_3()
    hidden, shown = text.getvalue().rfind("\x1b[?25l"), text.getvalue().rfind("\x1b[?25h")
    assert 0 <= hidden < shown, "the cursor is back"


def a_result(edges):
    return {
        "edges": [{"source": s, "target": t, "weight": w} for s, t, w in edges],
        "dropped_edges": [],
        "warnings": [],
        "privacy": None,
        "bytes": {
            "up": {"formula": 1_500_000, "serialised": 1_000_000},
            "down": {"formula": 250_000, "serialised": 100_500},
        },
        "seconds": {"total": 3.25, "local": 1.0, "global": 2.0},
    }


def summary(result, *, folder, scores=None, width=100):
    text = StringIO()
    print_summary(result, folder, Console(file=text, width=width), scores=scores, seconds=4.5)
    return text.getvalue()


def cells(line):
    return [cell.strip() for cell in re.split("[│┃]", line) if cell.strip()]


def test_the_summary_lists_edges_score_bytes_both_ways_seconds_and_folder(tmp_path):
    estimate, reference = np.zeros((2, 4, 4), dtype=bool)
    estimate[0, 1] = estimate[2, 3] = estimate[0, 3] = True
    reference[0, 1] = reference[3, 2] = reference[1, 2] = reference[1, 3] = True
    text = summary(a_result([("a", "b", 1.5), ("c", "d", -0.25)]), folder=tmp_path, scores=score(estimate, reference))
    rows = [cells(line) for line in text.splitlines()]
    assert "edges learned: 2" in text
    assert ["a", "b", "+1.500"] in rows
    assert ["c", "d", "-0.250"] in rows
    flat = " ".join(text.split())
    assert "SHD 4 of 4 edges (2 missing, 1 extra, 1 reversed)" in flat
    assert "bytes, formula 1.75 MB (1.50 MB up, 250.0 kB down)" in flat
    assert "bytes, serialised 1.10 MB (1.00 MB up, 100.5 kB down)" in flat
    assert "4.5 in all, 3.2 from the first round on" in flat
    assert text.splitlines()[-1] == f"run folder         {tmp_path}"
    assert "cycles" not in text


def test_the_summary_claims_no_score_without_a_truth(tmp_path):
    assert "SHD" not in summary(a_result([]), folder=tmp_path)


def test_the_summary_says_how_many_edges_were_left_out_to_break_cycles(tmp_path):
    result = {**a_result([("a", "b", 1.0)]), "dropped_edges": [{}, {}]}
    assert re.search(r"cycles +2 weak edges left out to break them", summary(result, folder=tmp_path))


def test_the_summary_repeats_the_warnings_of_the_result(tmp_path):
    result = {**a_result([]), "warnings": ["column [x] looks odd", "h(W) is large"]}
    flat = " ".join(summary(result, folder=tmp_path).split())
    assert "column [x] looks odd" in flat
    assert "h(W) is large" in flat


@pytest.mark.parametrize("width", [40, 80])
def test_the_path_of_the_run_folder_is_never_cut_short(width, tmp_path):
    folder = tmp_path / ("a" * 50) / "[bold]" / ("b" * 50)
    assert summary(a_result([]), folder=folder, width=width).rstrip().endswith(str(folder))


@pytest.mark.parametrize("name", ["dose [mg/l]", "[/x]", "[red]IL-6[/red]", ":smile:", "NF-κB/p65", "a\\"])
def test_names_that_look_like_markup_stay_as_they_are(name, tmp_path):
    text = summary(a_result([(name, "b", 1.0), ("b", name, 1.0)]), folder=tmp_path)
    rows = [cells(line) for line in text.splitlines()]
    assert [name, "b", "+1.000"] in rows
    assert ["b", name, "+1.000"] in rows


def test_a_long_list_of_edges_ends_with_where_to_find_the_rest(tmp_path):
    text = summary(a_result([(f"s{k:03}", "t", 1.0) for k in range(300)]), folder=tmp_path)
    shown = len(set(re.findall(r"s\d{3}", text)))
    assert 10 <= shown < 300
    assert re.search(rf"\.\.\. {300 - shown} more +│ in edges\.csv", text)
