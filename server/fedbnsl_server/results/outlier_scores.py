"""Which sites stand out: the table of their outlier scores in result.json (`influence`), and notes about it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from fedbnsl.console.wording import first_few
from fedbnsl.rounds.kinds import KINDS
from fedbnsl_server.algorithm.influence import FEWEST_SITES, LIMIT, Influence
from fedbnsl_server.results.sentences import Note, note

# A site with more rows than this many times the median of the others is worth a question.
_MANY_ROWS = 10.0


def as_entry(scores: Mapping[str, Influence], variables: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What result.json says of a round, by site."""
    return {
        site: {"ratio": float(f"{of.ratio:.3g}"), "variables": [variables[k] for k in of.variables]}
        for site, of in scores.items()
    }


def table(rounds: Iterable[Mapping[str, Any]], sites: Iterable[str], *, summed: bool = False) -> dict[str, Any]:
    """What result.json says of the whole run: each site's largest outlier score, and when it was.

    Parameters
    ----------
    summed
        Whether only sums over all sites were seen.
    """
    told = [(entry, entry["influence"]) for entry in rounds if entry.get("influence")]
    of_sites: dict[str, Any] = {}
    for site in sites:
        there = [(by_site[site], entry) for entry, by_site in told if site in by_site]
        if there:
            most, entry = max(there, key=lambda one: one[0]["ratio"])
            of_sites[site] = {
                "largest": most["ratio"],
                "round": entry["round"],
                "kind": entry["kind"],
                "rounds_above_limit": sum(of["ratio"] > LIMIT for of, _ in there),
                "variables": most["variables"],
            }
    unknown = "in secure aggregation nobody sees the numbers of one site"
    if not summed:
        unknown = f"no round had answers of {FEWEST_SITES} sites or more: of two, nothing tells which one is odd"
    return {"limit": LIMIT, "unknown_because": "" if of_sites else unknown, "sites": of_sites}


def outliers(scores: Mapping[str, Any]) -> list[Note]:
    """Each site of `table` above the limit, the largest score first; then the odd site."""
    above = [(site, of) for site, of in scores["sites"].items() if of["largest"] > scores["limit"]]
    above.sort(key=lambda one: -one[1]["largest"])
    found = [_outlier("outlier", site, of["kind"], of["round"], of["largest"], of["variables"]) for site, of in above]
    odd = scores.get("odd")
    if odd:
        pairs, lost, gained = (
            [f"{one} -- {other}" for one, other in odd[key]]
            for key in ("differs_in", "edges_lost_without", "edges_gained_without")
        )
        out = odd["left_out_by_median"]
        found.append(note("odd_site", site=odd["site"], pairs=pairs, lost=lost, gained=gained, left_out=out))
    return found


def outliers_now(scores: Mapping[str, Influence], kind: str, t: int, variables: Sequence[str]) -> dict[str, Note]:
    """By site above the limit in round t, while the run goes on."""
    return {
        site: _outlier("outlier_now", site, kind, t, of.ratio, [variables[k] for k in of.variables])
        for site, of in scores.items()
        if of.ratio > LIMIT
    }


def _outlier(code: str, site: str, kind: str, t: int, ratio: float, variables: Sequence[str]) -> Note:
    return note(code, site=site, numbers=KINDS[kind].NUMBERS, round=t, ratio=ratio, variables=variables)


def in_one_line(scores: Mapping[str, Any]) -> str:
    """The sites of `table` with their largest scores, such as `south 2.9, north 1.2 (above 6 is named)`."""
    if scores["unknown_because"]:
        return f"not known: {scores['unknown_because']}"
    largest = sorted(scores["sites"].items(), key=lambda one: -one[1]["largest"])
    sites = first_few((f"{site} {of['largest']:.2g}" for site, of in largest), most=12)
    return f"{sites} (above {scores['limit']:g} is named)"


def who_was_left_out(rounds: Iterable[Mapping[str, Any]]) -> list[Note]:
    """Each round of result.json whose result holds nothing of some sites that answered."""
    return [
        note("left_out", sites=", ".join(one["left_out"]), round=one["round"], numbers=KINDS[one["kind"]].NUMBERS)
        for one in rounds
        if one.get("left_out")
    ]


def many_rows(n_samples: Mapping[str, int]) -> list[Note]:
    """Each site that says it has far more rows than the others."""
    found: list[Note] = []
    for site, n in n_samples.items():
        others = [rows for name, rows in n_samples.items() if name != site]
        if others and n > _MANY_ROWS * median(others):
            found.append(note("many_rows", site=site, rows=n, times=math.floor(n / median(others))))
    return found
