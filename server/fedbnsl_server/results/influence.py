"""Which sites stand out: what result.json says of each site's influence, and the sentences for its readers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from fedbnsl.console.wording import first_few
from fedbnsl.rounds.kinds import KINDS
from fedbnsl_server.algorithm.influence import FEWEST_SITES, LIMIT, Influence

# More rows than so many times the median of the others is worth a question.
_MANY_ROWS = 10.0


def as_entry(influence: Mapping[str, Influence], variables: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What result.json says of a round, by site."""
    return {
        site: {"ratio": float(f"{of.ratio:.3g}"), "variables": [variables[k] for k in of.variables]}
        for site, of in influence.items()
    }


def table(rounds: Iterable[Mapping[str, Any]], sites: Iterable[str], *, summed: bool = False) -> dict[str, Any]:
    """What result.json says of the whole run: each site's largest influence, and when it was.

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


def outliers(influence: Mapping[str, Any] | None) -> list[str]:
    """A sentence for each site of `table` above the limit, the largest influence first; then one for the odd site."""
    if influence is None:  # older runs do not have it
        return []
    above = [(site, of) for site, of in influence["sites"].items() if of["largest"] > influence["limit"]]
    above.sort(key=lambda one: -one[1]["largest"])
    return [
        f"{_stands_out(site, of['kind'], of['round'], of['largest'], of['variables'])}. The result may be this site's "
        "alone: compare its columns, units and coding with the others'; if they are wrong, run again without this site"
        for site, of in above
    ] + _differs_alone(influence.get("odd"))  # older runs do not have it


def _differs_alone(odd: Mapping[str, Any] | None) -> list[str]:
    if odd is None:
        return []

    def pairs(key: str) -> str:
        return first_few((f"{one} -- {other}" for one, other in odd[key]), 4)

    without = [
        f"{what} {pairs(key)}"
        for key, what in (("edges_lost_without", "lacks"), ("edges_gained_without", "also has"))
        if odd[key]
    ]
    median = "would leave it out" if odd["left_out_by_median"] else "would not leave it out"
    return [
        f"{odd['site']} differs from all other sites in {pairs('differs_in')}: without it the others agree"
        + (f", and the graph {' and '.join(without)}" if without else "")
        + ". Compare its columns, units and coding with the others'; if they are wrong, run again without this site "
        f'(`consensus = "median"` {median})'
    ]


def outliers_now(influence: Mapping[str, Influence], kind: str, t: int, variables: Sequence[str]) -> dict[str, str]:
    """By site above the limit in round t: what to say of it while the run goes on."""
    return {
        site: f"{_stands_out(site, kind, t, of.ratio, [variables[k] for k in of.variables])}. Compare its columns, "
        "units and coding with the others'; if they are wrong, `fedbnsl coordinator eject` takes it out of the run"
        for site, of in influence.items()
        if of.ratio > LIMIT
    }


def _stands_out(site: str, kind: str, t: int, ratio: float, variables: Sequence[str]) -> str:
    return (
        f"{site} stands out: its {KINDS[kind].NUMBERS} of round {t} lie {ratio:.3g} times as far from the other sites' "
        f"as these from each other, most in {', '.join(map(repr, variables))}"
    )


def in_one_line(influence: Mapping[str, Any]) -> str:
    """The sites of `table` with their largest influences, such as `south 2.9, north 1.2 (above 6 is named)`."""
    if influence["unknown_because"]:
        return f"not known: {influence['unknown_because']}"
    largest = sorted(influence["sites"].items(), key=lambda one: -one[1]["largest"])
    sites = first_few((f"{site} {of['largest']:.2g}" for site, of in largest), most=12)
    return f"{sites} (above {influence['limit']:g} is named)"


def who_was_left_out(rounds: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each round of result.json whose result holds nothing of some sites that answered."""
    return [
        f"{', '.join(entry['left_out'])}: left out of the search of round {entry['round']} by the plan's consensus, as "
        f"the {KINDS[entry['kind']].NUMBERS} farthest from the other sites'"
        for entry in rounds
        if entry.get("left_out")
    ]


def many_rows(n_samples: Mapping[str, int]) -> list[str]:
    """A sentence for each site that says it has far more rows than the others."""
    sentences: list[str] = []
    for site, n in n_samples.items():
        others = [rows for name, rows in n_samples.items() if name != site]
        if others and n > _MANY_ROWS * median(others):
            sentences.append(
                f"{site} says that it has {n} rows, {math.floor(n / median(others))} times the median of the other "
                "sites: its numbers may weigh more than theirs, and nobody else can count its rows"
            )
    return sentences
