r"""Text that somebody else wrote, as it is put on a terminal or into a log.

A control character may move the cursor, clear the screen or begin a new line; a bidirectional one lets text be read in
another order than it stands in. Both become visible escapes, such as `\x1b`.
"""

import unicodedata

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

# Of one text from the other side, of one line, and of all lines of an error.
_MOST_CHARACTERS = 600
_MOST_OF_A_LINE = 4_000
_MOST_LINES = 60


def steers_terminal(character: str) -> bool:
    """Whether a character only changes how others are shown: control, line separator, bidirectional."""
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _BIDIRECTIONAL


def shown(text: str, most: int = _MOST_CHARACTERS) -> str:
    """A text in one line, harmless to a terminal, cut to `most` characters."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(_escaped(character) if steers_terminal(character) else character for character in cut)


def shown_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines; the last ones are cut off if there are too many."""
    lines = text.split("\n")
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more lines"]
    return "\n".join(shown(line, _MOST_OF_A_LINE) for line in lines)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
