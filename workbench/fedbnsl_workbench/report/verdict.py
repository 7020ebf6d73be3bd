"""What a graph rests on, in words: what was assumed, whether the data contradict it, and who directed the edges."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedbnsl.console.wording import counted
from fedbnsl_server.inference.draws import FEW_DRAWS, MAJORITY
from fedbnsl_server.results.influence import outliers

DIRECTED_BY: Mapping[str, str] = {
    "data": "by the data",
    "knowledge": "by knowledge",
    "assumption": "by equal variances",
    "untested": "not tested",
    "undecided": "too few draws agree",
    "nobody": "the data leave it open",
}
"""Who can direct an edge, as in result.json, or why nobody does, and how it is said."""

# What older results did not say.
_MOST_IMPORTANT = "common causes that no table has"
_NOBODY = ("untested", "undecided", "nobody")


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
        Number of edges by the keys of DIRECTED_BY; those of `undecided` and `nobody` have no direction,
        and that of `untested` is one that no search has confirmed.
    incomplete
        Which searches were ended early, in whole sentences.
    few_rows
        A warning of few rows, as a whole sentence, if they are.
    not_testable
        What no run can see in the tables, each as a clause, what matters most first.
    draws
        Of the bootstrap; None: an older result does not say.
    majority
        The share of the draws with an edge that its direction needs.
    """

    assumed: Sequence[str]
    contradicted: Sequence[str]
    tested: Sequence[str] | None
    directed_by: Mapping[str, int]
    incomplete: Sequence[str] = ()
    not_testable: Sequence[str] = (_MOST_IMPORTANT,)
    few_rows: Sequence[str] = ()
    draws: int | None = None
    majority: float = MAJORITY

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
        n_edges, counts = sum(self.directed_by.values()), self.directed_by
        if not n_edges:
            return ""
        by = [f"{words}: {counts[key] or 'none'}" for key, words in DIRECTED_BY.items() if key not in _NOBODY]
        words = f"Directed {by[0]} of {counted(n_edges, 'edge')}; {'; '.join(by[1:])}."
        if counts["untested"]:
            words += f" Not tested, as the run ended before its search: {counts['untested']}."
        if counts["nobody"]:
            words += f" Without a direction, as the data leave it open: {counts['nobody']}."
        if counts["undecided"]:
            why = (
                f"less than {self._percent} of the draws agree"
                if self.draws != 0
                else "they tie functions of each other"
            )
            words += f" Without a direction, as {why}: {counts['undecided']}."
        return f"{words} {self._how_sure}".rstrip() if sum(counts[key] for key in ("data", "assumption")) else words

    @property
    def _percent(self) -> str:
        return f"{100 * self.majority:.0f} %"

    @property
    def _how_sure(self) -> str:
        """What there are too few draws for."""
        if self.draws is None or self.draws >= FEW_DRAWS:
            return ""
        if not self.draws:
            return "How sure these directions are is not known: the run made no bootstrap draws."
        return f"With {counted(self.draws, 'bootstrap draw')} alone, how sure these directions are is hardly known."


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
        found.get("draws"),
        found.get("majority", MAJORITY),
    )


def at_the_head(result: Mapping[str, Any]) -> list[str]:
    """Warnings that summary and page have at their head, and so not among the others."""
    verdict: Mapping[str, Any] = result.get("verdict") or {}
    return [*outliers(result.get("influence")), *verdict.get("incomplete", ()), *verdict.get("few_rows", ())]


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
