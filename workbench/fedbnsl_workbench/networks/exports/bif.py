"""Tables of probabilities in BIF 0.15 and XMLBIF 0.3 (Cozman, "The Interchange Format for Bayesian Networks").

BIF has names without quotes, and its readers differ: so names and levels there hold ASCII letters, digits and
underscores alone. Accents are taken off, and each other character becomes an underscore. A variable's name that would
begin with a digit gets a "v" before it, a word of the format an underscore after it, and one that another has, whatever
the case, a number. Comments at the head of the file list all that were changed. XMLBIF keeps names as they are.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

from fedbnsl_workbench.networks.exports.distributions import OfLevels
from fedbnsl_workbench.networks.exports.wording import without_lines

_WORDS = frozenset(("network", "variable", "probability", "property", "type", "discrete", "table", "default"))


def bif(levels: Mapping[str, Sequence[str]], tables: Mapping[str, OfLevels], comments: Iterable[str]) -> str:
    """BIF, with a comment for each name and level that is written in another way."""
    ids = dict(zip(levels, identifiers(levels), strict=True))
    of_levels = {name: identifiers(own, digits_first=True) for name, own in levels.items()}
    renamed = [f"{new} is the variable {old!r}" for old, new in ids.items() if new != old]
    for name, own in levels.items():
        pairs = [(old, new) for old, new in zip(own, of_levels[name], strict=True) if old != new]
        renamed += [f"{new} is the level {old!r} of {name!r}" for old, new in pairs]
    lines = [f"// {without_lines(text)}" for text in (*comments, *renamed)]
    lines += ["network learned {", "}"]
    for name, one in ids.items():
        own = of_levels[name]
        lines += [f"variable {one} {{", f"  type discrete [ {len(own)} ] {{ {', '.join(own)} }};", "}"]
    for name, of in tables.items():
        given = f" | {', '.join(ids[parent] for parent in of.parents)}" if of.parents else ""
        lines.append(f"probability ( {ids[name]}{given} ) {{")
        combinations = itertools.product(*(of_levels[parent] for parent in of.parents))
        rows: list[list[float]] = of.table.reshape(-1, of.table.shape[-1]).tolist()
        for at, row in zip(combinations, rows, strict=True):
            begin = f"({', '.join(at)})" if at else "table"
            lines.append(f"  {begin} {', '.join(map(repr, row))};")
        lines.append("}")
    return "\n".join([*lines, ""])


_DTD = """<!DOCTYPE BIF [
  <!ELEMENT BIF (NETWORK)*>
  <!ATTLIST BIF VERSION CDATA #REQUIRED>
  <!ELEMENT NETWORK (NAME, (PROPERTY | VARIABLE | DEFINITION)*)>
  <!ELEMENT NAME (#PCDATA)>
  <!ELEMENT VARIABLE (NAME, (OUTCOME | PROPERTY)*)>
  <!ATTLIST VARIABLE TYPE (nature | decision | utility) "nature">
  <!ELEMENT OUTCOME (#PCDATA)>
  <!ELEMENT DEFINITION (FOR | GIVEN | TABLE | PROPERTY)*>
  <!ELEMENT FOR (#PCDATA)>
  <!ELEMENT GIVEN (#PCDATA)>
  <!ELEMENT TABLE (#PCDATA)>
  <!ELEMENT PROPERTY (#PCDATA)>
]>"""


def xmlbif(levels: Mapping[str, Sequence[str]], tables: Mapping[str, OfLevels], comments: Iterable[str]) -> str:
    """XMLBIF; in its tables the variable's own level changes fastest, and then the last parent's."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    # XML allows no two hyphens within a comment, and no hyphen at its end.
    lines += [f"<!-- {without_lines(text).replace('--', '- -')} -->" for text in comments]
    lines += [_DTD, '<BIF VERSION="0.3">', "<NETWORK>", "<NAME>learned</NAME>"]
    for name, own in levels.items():
        outcomes = "".join(f"<OUTCOME>{escape(level)}</OUTCOME>" for level in own)
        lines.append(f'<VARIABLE TYPE="nature"><NAME>{escape(name)}</NAME>{outcomes}</VARIABLE>')
    for name, of in tables.items():
        given = "".join(f"<GIVEN>{escape(parent)}</GIVEN>" for parent in of.parents)
        table = " ".join(map(repr, of.table.ravel().tolist()))
        lines.append(f"<DEFINITION><FOR>{escape(name)}</FOR>{given}<TABLE>{table}</TABLE></DEFINITION>")
    return "\n".join([*lines, "</NETWORK>", "</BIF>", ""])


def identifiers(names: Iterable[str], *, digits_first: bool = False) -> list[str]:
    """Names as BIF may hold them, all different; `digits_first`: whether one may begin with a digit, as levels do."""
    names = list(names)
    plain = [_identifier(name, digits_first=digits_first) for name in names]
    # Names that need no change keep theirs, whatever comes before them.
    taken = {new.lower() for old, new in zip(names, plain, strict=True) if old == new}
    found, used = list[str](), set[str]()
    for old, new in zip(names, plain, strict=True):
        unique, number = new, 2
        while unique.lower() in used or (unique != old and unique.lower() in taken):
            unique, number = f"{new}_{number}", number + 1
        used.add(unique.lower())
        found.append(unique)
    return found


def _identifier(name: str, *, digits_first: bool) -> str:
    letters = "".join(one for one in unicodedata.normalize("NFKD", name) if not unicodedata.combining(one))
    word = re.sub(r"[^A-Za-z0-9_]", "_", letters) or "_"
    if not digits_first and word[:1].isdigit():
        word = f"v{word}"
    return f"{word}_" if word.lower() in _WORDS else word
