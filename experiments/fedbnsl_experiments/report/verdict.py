"""What a graph rests on, in words: what was assumed, whether the data contradict it, and who directed the edges."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

DIRECTED_BY: Mapping[str, str] = {
    "data": "by the data",
    "knowledge": "by knowledge",
    "assumption": "by equal variances",
    "nobody": "by nobody",
}
"""Who can direct an edge, as in result.json, and how it is said."""

# What older results did not say.
_MOST_IMPORTANT = "common causes that no table has"


@dataclass(frozen=True)
class Verdict:
    """The head of summary and page.

    Attributes
    ----------
    assumed
        Whole sentences.
    contradicted
        Whole sentences.
    tested
        What of it the run could test, each as a clause; nothing without moments. None: an older result does not say.
    directed_by
        Number of edges by the keys of DIRECTED_BY; those of `nobody` are undirected.
    incomplete
        Which searches were ended early, in whole sentences.
    few_rows
        A warning of few rows, as a whole sentence, if they are.
    not_testable
        What no run can see in the tables, each as a clause, what matters most first.
    """

    assumed: Sequence[str]
    contradicted: Sequence[str]
    tested: Sequence[str] | None
    directed_by: Mapping[str, int]
    incomplete: Sequence[str] = ()
    not_testable: Sequence[str] = (_MOST_IMPORTANT,)
    few_rows: Sequence[str] = ()

    @property
    def held(self) -> str:
        """What was tested, whether nothing was contradicted, and what was not testable: never one without the other."""
        holds = "" if self.contradicted else "Nothing in the data contradicts it."
        hidden = f"Not testable: {'; '.join(self.not_testable)}."
        if self.tested is None:
            return f"{holds} {hidden}".lstrip()
        if not self.tested:
            return "Whether the data contradict it was not tested."
        return " ".join([f"Tested: {'; '.join(self.tested)}.", *[holds] * bool(holds), hidden])

    @property
    def in_words(self) -> str:
        """Who directed how many edges."""
        n_edges = sum(self.directed_by.values())
        if not n_edges:
            return ""
        counts = [f"{words}: {self.directed_by[key] or 'none'}" for key, words in DIRECTED_BY.items()]
        return f"Directed {counts[0]} of {n_edges} edge{'s' if n_edges > 1 else ''}; {'; '.join(counts[1:])}."


def verdict_of(result: Mapping[str, Any]) -> Verdict | None:
    """The verdict in a result.json; None where there is none: older results, plans without a search."""
    found: Mapping[str, Any] | None = result.get("verdict")
    if found is None:
        return None
    counts = found.get("directed_by") or Counter(edge.get("directed_by", "") for edge in result["edges"])
    return Verdict(
        [_sentence(text) for text in found.get("assumed", [])],
        [_sentence(text) for text in found.get("contradicted", [])],
        found.get("tested", None if result.get("estimation") else ()),
        {key: int(counts.get(key, 0)) for key in DIRECTED_BY},
        [_sentence(text) for text in found.get("incomplete", [])],
        found.get("not_testable") or (_MOST_IMPORTANT,),
        [_sentence(text) for text in found.get("few_rows", [])],
    )


def at_the_head(result: Mapping[str, Any]) -> list[str]:
    """Warnings that summary and page have with their verdict, and so not among the others."""
    verdict: Mapping[str, Any] = result.get("verdict") or {}
    return [*verdict.get("incomplete", ()), *verdict.get("few_rows", ())]


def as_typeset(verdict: Verdict | None) -> Verdict | None:
    """The verdict for a page, with the signs that result.json writes in ASCII."""
    if verdict is None:
        return None
    said = [
        text.replace(" -> ", " \u2192 ").replace(" -- ", " \u2014 ").replace("(I^2 ", "(I\u00b2 ")
        for text in verdict.contradicted
    ]
    return replace(verdict, contradicted=said)


def is_directed(edge: Mapping[str, Any]) -> bool:
    """Whether an edge of a result.json has a direction; those of older results do."""
    return bool(edge.get("directed", True))


def _sentence(text: str) -> str:
    text = text.rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
