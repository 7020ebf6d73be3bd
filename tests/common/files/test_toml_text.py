"""Reading TOML ends soon, and in a value or a ValueError, whoever wrote it."""

import pytest

from fedbnsl.files.toml_text import parse_toml

BOMBS = {
    "nested arrays": "x = " + "[" * 100_000,
    "nested arrays that are closed": "x = " + "[" * 100 + "]" * 100,
    "nested tables": "x = " + "{a=" * 100_000,
    "a key of many parts": ".".join("a" * 400_000) + " = 1",
    "a table of many parts": "[" + ".".join("a" * 90) + "]",
    "quoted parts": ".".join(['"a"'] * 200_000) + " = 1",
    "many parts within an inline table": "x = {" + ".".join("a" * 400_000) + " = 1}",
    "a number of a million digits": "x = " + "9" * 1_000_000,
    "a hexadecimal number of a million digits": "x = 0x" + "f" * 1_000_000,
    "more than a MiB": "#" * (2**20 + 1),
    "more than a MiB in bytes": "#" + "ä" * 2**19,
    "no TOML": "x = = 1",
    "a key whose quoted parts hold what stands between keys": '"=".' * 12_000 + "a = 1",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"it |limit|Invalid"):
        parse_toml(text)


def test_what_plans_hold_is_read() -> None:
    assert parse_toml('x = 1\n[a.b]\nc = [[1, 2], ["d", "e"]]\ne = {f = {g = -9223372036854775808}}') == {
        "x": 1,
        "a": {"b": {"c": [[1, 2], ["d", "e"]], "e": {"f": {"g": -(2**63)}}}},
    }


def test_a_byte_order_mark_in_front_is_skipped() -> None:
    assert parse_toml("\ufeff[a]\nb = 1\n") == {"a": {"b": 1}}
