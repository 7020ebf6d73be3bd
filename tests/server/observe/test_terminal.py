"""What a person sees of a run: live on a terminal, a few lines on a pipe."""

import re
import threading
from dataclasses import replace
from datetime import datetime
from io import StringIO

import pytest
from rich.console import Console

from fedbnsl.protocol.messages import RunStatus, SiteProgress
from fedbnsl_server.observe.terminal import RunDisplay, duration, state_of, view

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def site(name, *, answered=True, left=False, up=0, down=0, **more):
    seen = {"last_seen_s": 0.0, "online_s": 1.0, **more}
    return SiteProgress(site=name, answered=answered, left=left, bytes_up=up, bytes_down=down, **seen)


def status(t, *, of=10, elapsed_s=0.0, sites=None, state="running", time_unix_s=0.0):
    sites = (site("site-1"), site("site-2", answered=False)) if sites is None else sites
    return RunStatus(
        state, t, of, acyclicity=1.25e-3, edges=17, elapsed_s=elapsed_s, sites=tuple(sites), time_unix_s=time_unix_s
    )


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
        "17 edges",
        "1.2 kB",
        "8 s, about 12 s left",
    ]


def test_edges_without_a_direction_are_counted_apart():
    assert "  14 directed edges, 3 undirected  " in on_a_pipe(replace(status(5), undirected=3))


def test_nothing_is_foretold_before_a_round_is_done():
    (line,) = on_a_pipe(status(1, elapsed_s=3.0)).splitlines()
    assert line.endswith("  3 s")


def test_before_the_first_round_those_who_joined_are_counted():
    (line,) = on_a_pipe(status(0, state="joining")).splitlines()
    assert line == "joining: 2 joined"


def test_a_paused_run_says_what_it_waits_for():
    paused = replace(status(3, state="paused"), reason="No space left on device")
    assert on_a_pipe(paused).startswith("paused (No space left on device)  round 3/10")
    assert "paused (No space left on device)" in on_a_terminal(paused)


def test_a_run_whose_round_lacks_a_quorum_says_whom_it_waits_for_as_soon_as_it_does():
    lacking = replace(status(3), reason="waiting for c (quorum 3 of 3)")
    lines = on_a_pipe(status(3), lacking, lacking, status(3)).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["round 3/10", "waiting for c (quorum 3 of 3)", "round 3/10"]
    assert "waiting for c (quorum 3 of 3)" in on_a_terminal(lacking)


def test_a_long_line_is_not_broken_on_a_pipe():
    text = StringIO()
    with RunDisplay("a run", Console(file=text, force_terminal=False, width=20)) as display:
        display.show(status(5))
    assert len(text.getvalue().splitlines()) == 1


def test_a_terminal_shows_every_site_beside_the_state_of_the_run():
    noon = datetime(2026, 3, 4, 12, 0, 0).timestamp()
    sites = [
        site("clinic", up=1_234_000, down=56_000, online_s=60.0, last_seen_s=2.0, last_round=5, spent_units=5 * 10**11),
        site("ward", answered=False, up=2_000, online_s=86400.0, last_seen_s=75.0, last_round=4),
        site("lab", answered=False, left=True, online_s=0.0, last_seen_s=3720.0),
        site("pharmacy", answered=False, online_s=0.0, last_seen_s=600.0, last_round=1, spent_units=0),
    ]
    last_status = status(5, elapsed_s=8.0, sites=sites, time_unix_s=noon)
    text = on_a_terminal(status(2, sites=sites), last_status, title="plan [x/y]: 3 sites")
    last = text[text.rindex("plan [x/y]: 3 sites") :]
    for words in ("round 5/10", "answered 1/4", "h(W) 1.3e-03", "17 edges", "1.29 MB", "8 s, about 12 s left"):
        assert words in last, words
    rows = [re.split(r"\s{2,}", line.strip()) for line in last.splitlines() if line.strip()]
    (start,) = (k for k, row in enumerate(rows) if row[0] == "site")
    assert rows[start : start + 5] == [
        ["site", "state", "online since", "last seen", "last round", "spent zCDP", "up", "down"],
        ["clinic", "answered", "11:59:00", "2 s ago", "5", "0.5", "1.23 MB", "56.0 kB"],
        ["ward", "working", "03-03 12:00", "1 min 15 s ago", "4", "-", "2.0 kB", "0.0 kB"],
        ["lab", "left", "-", "1 h 2 min ago", "-", "-", "0.0 kB", "0.0 kB"],
        ["pharmacy", "away", "-", "10 min 0 s ago", "1", "0", "0.0 kB", "0.0 kB"],
    ]
    assert "spent zCDP: from this dataset in this federation, as each site's ledger told it last" in last
    assert "━" in last, "a bar"


@pytest.mark.parametrize("state", ["finished", "failed", "interrupted"])
def test_of_a_run_that_has_ended_no_site_is_called_away(state):
    sites = [site("clinic", online_s=0.0), site("lab", left=True, online_s=0.0), site("ward", online_s=9.0)]
    ended = status(5, sites=sites, state=state)
    assert [state_of(one, ended) for one in sites] == ["run has ended", "left", "run has ended"]
    assert "away" not in on_a_terminal(ended)


def at_width(width, sites):
    text = StringIO()
    Console(file=text, force_terminal=False, width=width).print(view("a run", status(5, sites=sites, elapsed_s=8.0)))
    return text.getvalue()


def test_names_of_64_characters_are_shown_whole_on_80_columns():
    names = ["a" * 64, "-".join(["klinik"] * 9), "b"]
    busy = {"last_seen_s": 3720.0, "online_s": 86400.0, "last_round": 500, "spent_units": 123456, "up": 10**9}
    lines = at_width(80, [site(name, **busy) for name in names]).splitlines()
    for name in names:
        assert any(line.split()[:2] == [name, "answered"] for line in lines), name
    assert max(map(len, lines)) <= 80


def test_columns_give_way_to_names_one_by_one_and_are_named():
    short = at_width(100, [site("a")])
    assert "not shown" not in short
    assert "down" in short
    narrower = at_width(80, [site("clinic-of-the-north", spent_units=1, last_seen_s=100.0)])
    assert "clinic-of-the-north" in narrower
    assert "last seen" in narrower
    assert re.search(r"columns? not shown: (?:online since, )?up, down \(see --json\)", narrower)


def test_a_name_that_is_wider_than_the_terminal_is_broken_and_not_cut():
    text = at_width(40, [site("".join(chr(ord("a") + k % 26) for k in range(64)))])
    letters = "".join(re.findall(r"^([a-z]+)(?:\s|$)", text[text.index("state") :], flags=re.MULTILINE))
    assert "".join(chr(ord("a") + k % 26) for k in range(64)) in letters


def test_a_run_without_ledgers_says_nothing_of_ledgers():
    assert "ledger" not in on_a_terminal(status(2))


def test_before_the_first_round_sites_have_joined():
    assert re.search(r"site-1 +joined", on_a_terminal(status(0, state="waiting for sites")))


def test_a_run_that_is_over_foretells_nothing_and_says_how_it_ended():
    (line,) = on_a_pipe(status(10, elapsed_s=20.0, state="finished")).splitlines()
    assert line.startswith("finished  round 10/10  ")
    assert line.endswith("  20 s")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3599.0, "59 min 59 s"), (3600.0, "1 h 0 min")]
)
def test_a_duration_has_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_a_coordinator_that_is_away_is_told_once_on_a_pipe_and_so_is_its_return():
    text = StringIO()
    with RunDisplay("a run", Console(file=text, force_terminal=False, width=100)) as display:
        display.show(status(5))
        for _ in range(3):
            display.show_trouble("nobody answers")
        display.show(status(5))
        display.show(status(5))
    lines = text.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["round", "nobody", "round"]


def test_a_terminal_keeps_what_was_seen_last_below_the_trouble():
    text = StringIO()
    with RunDisplay("a run", Console(file=text, force_terminal=True, width=100)) as display:
        display.show(status(5))
        display.show_trouble("nobody answers [now]")
    drawn = ANSI.sub("", text.getvalue())
    last = drawn[drawn.rindex("nobody answers [now]") :]
    assert "round 5/10" in last
    assert "site-1" in last


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
