"""What somebody else wrote reaches a terminal as text alone."""

import pytest

from fedbnsl.cli import report
from fedbnsl.console.shown import shown, shown_lines
from fedbnsl.errors import FedbnslError
from fedbnsl.protocol.messages import is_site_name, is_variable_name


def test_whatever_moves_a_cursor_or_turns_the_order_of_reading_becomes_a_visible_escape() -> None:
    assert shown("a\x1b[2Jb\x9b\nc\r\td\u202ee\u2066f\u2028g\ud800") == (
        r"a\x1b[2Jb\x9b\nc\r\td\u202ee\u2066f\u2028g\ud800"
    )


def test_names_of_all_scripts_stay_as_they_are() -> None:
    for name in ("größe", "年齢", "גובה", "क\u200dष", "a b", "ﷺ"):
        assert shown(name) == name


def test_a_long_text_is_cut_and_says_so() -> None:
    assert shown("x" * 700) == "x" * 599 + "…"
    assert shown("x" * 600) == "x" * 600


def test_lines_stay_lines_up_to_a_bound() -> None:
    assert shown_lines("a\nb\x1b") == "a\nb\\x1b"
    assert shown_lines("\n".join("a" * 100)).split("\n")[-1] == "... and 40 more lines"


@pytest.mark.parametrize(
    "mark", ["\x00", "\x1b", "\n", "\x7f", "\x9b", "\u061c", "\u200f", "\u202e", "\u2028", "\u2069"]
)
def test_no_name_of_a_site_a_federation_or_a_variable_steers_a_terminal(mark: str) -> None:
    for name in (f"a{mark}", f"a{mark}b", f"{mark}a"):
        assert not is_variable_name(name)
        assert not is_site_name(name)  # of federations, too
    assert is_variable_name("a b")
    assert is_site_name("ab")


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_with_a_foreign_text_is_printed_without_its_control_characters(
    capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    try:
        raise FedbnslError("refused: \x1b]0;owned\x07", remedy="call \u202e911")
    except FedbnslError as error:
        report(error, debug=debug)
    said = capsys.readouterr().err
    assert r"refused: \x1b]0;owned\x07" in said
    assert not set(said) & set("\x1b\x07\u202e")
