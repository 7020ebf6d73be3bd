"""A table in a narrow terminal breaks no word: it leaves columns out, and names them."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from fedbnsl.console.whole_words import keep_words

CELLS = [["cholesterol", "pressure", "-0.123", "-0.2 to -0.1"], ["age", "crp", "+1.5", "1 to 2"]]
HEADS = ["source", "target", "weight", "95 % of\ndraws"]


def shown(width: int) -> str:
    table, console = Table(), Console(file=io.StringIO(), width=width)
    for head in HEADS:
        table.add_column(head, overflow="fold")
    for row in CELLS:
        table.add_row(*row)
    console.print(keep_words(table, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "n_columns"), [(80, 4), (50, 4), (44, 4), (42, 3), (36, 3), (34, 2), (28, 2)])
def test_no_word_is_broken_and_columns_without_room_are_named_below(width: int, n_columns: int) -> None:
    text = shown(width)
    words = {word for row in [*CELLS, HEADS] for cell in row[:n_columns] for word in cell.split()}
    assert words <= set(text.replace("│", " ").replace("┃", " ").split())
    assert ("for a wider terminal: " in text) == (n_columns < 4)
    for head in HEADS[n_columns:]:
        assert " ".join(head.split()) in " ".join(text.partition("for a wider terminal")[2].split())
    assert max(map(len, text.splitlines())) <= width


def test_where_not_even_the_first_columns_have_room_all_are_shown_in_parts() -> None:
    assert "wider terminal" not in shown(20)
    assert shown(20).count("┳") == 3
