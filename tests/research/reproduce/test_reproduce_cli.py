"""The options of `fedbnsl reproduce`."""

import click
import pytest

from command_line import run_command
from fedbnsl_research.reproduce.cli import STUDIES, Seeds


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("2..11", tuple(range(2, 12))),
        ("1,100,400", (1, 100, 400)),
        ("5", (5,)),
        ("3..3", (3,)),
        ("1, 2 .. 4 ,9", (1, 2, 3, 4, 9)),
        ("4,2..5", (4, 2, 3, 5)),
        ("0", (0,)),
    ],
)
def test_seeds_are_ranges_and_single_ones_each_once(text, seeds):
    assert Seeds().convert(text, None, None) == seeds


@pytest.mark.parametrize("text", ["", ",", "5..2", "a", "-1", "1.5", "1..", "..3", "1;2", "0..99999", "1" * 12, "1,,2"])
def test_what_is_no_list_of_seeds_is_refused(text):
    with pytest.raises(click.BadParameter, match="expected seeds"):
        Seeds().convert(text, None, None)


def test_seeds_that_are_parsed_already_stay():
    assert Seeds().convert((7, 8), None, None) == (7, 8)


def test_the_help_names_every_study(capsys):
    outcome = run_command(capsys, "reproduce", "--help")
    assert outcome.code == 0
    assert all(name in outcome.out for name in STUDIES)


def test_a_study_that_is_not_there_and_bad_seeds_are_wrong_usage(capsys, tmp_path):
    assert run_command(capsys, "reproduce", "table9", "--out", tmp_path).code == 2
    outcome = run_command(capsys, "reproduce", "table1", "--seeds", "x", "--out", tmp_path)
    assert outcome.code == 2
    assert "2..11" in outcome.err
