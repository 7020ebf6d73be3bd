"""The model card of a run: what a paper's appendix says of it, on one to three pages to print, or as JSON.

Sites have aliases, also within sentences, unless they are to be named.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbnsl.errors import SetupError
from fedbnsl.files import durable
from fedbnsl_server.results.numbers import between, percent, signed
from fedbnsl_server.results.sentences import DIRECTED_BY, in_words, whole
from fedbnsl_server.results.unused import unused_notes
from fedbnsl_workbench.pages.render import drawing_width, render
from fedbnsl_workbench.report.cautions import cautions
from fedbnsl_workbench.report.hidden_causes import drawing_of_marks, hidden_causes, legend_of_marks, marks_of_edges
from fedbnsl_workbench.report.history import settings
from fedbnsl_workbench.report.learned import drawing, learned_edges, legend
from fedbnsl_workbench.report.network_on_terminal import variables_of
from fedbnsl_workbench.report.nodes import words_of_variables
from fedbnsl_workbench.report.prepared import preparation, rows_used
from fedbnsl_workbench.report.run_files import ReportedRun, read_run
from fedbnsl_workbench.report.sentences import learned_sentence

SCHEMA = "fedbnsl.card/1"
_MOST_ROWS = 40
_WIDEST_PX = 1400.0  # of a drawing whose names can be read on A4
_LONGEST_VALUE = 240

Said = Callable[[str], str]


def write_card(run: Path, out: Path | None = None, *, name_sites: bool = False) -> Path:
    """Write the card of a run folder, as a page or, where `out` ends with .json, as JSON; returns its path.

    Raises
    ------
    SetupError
        If `out` ends neither with .html nor with .json.
    ResultError
        If a file of the run cannot be read, or the card cannot be written.
    """
    out = out or run / "card.html"
    if out.suffix not in (".html", ".json"):
        raise SetupError(f"{out}: a card is written as .html or .json")
    read = replace(read_run(run), truth=None, scales=None)
    card = card_of(read, name_sites=name_sites)
    if out.suffix == ".json":
        durable.write_text(out, json.dumps(card, ensure_ascii=False, indent=1) + "\n")
        return out
    marks = drawing_of_marks(read)
    drawn = _still(marks or drawing(read, with_unsure=False))
    content = {
        "card": card,
        "drawing": drawn if drawing_width(drawn) <= _WIDEST_PX else "",
        "legend": legend_of_marks(hidden_causes(read)) if marks else legend(read),
        "variables": [
            (name, words.split("\n")) for name, words in zip(read.variables, words_of_variables(read), strict=True)
        ][:_MOST_ROWS],
        "most": _MOST_ROWS,
        "signed": signed,
        "between": between,
        "percent": percent,
    }
    durable.write_text(out, render("card.html.j2", **content))
    return out


def card_of(run: ReportedRun, *, name_sites: bool = False) -> dict[str, Any]:
    """All of the card, JSON-ready; numbers are those of result.json."""
    result, manifest = run.result, run.result["manifest"]
    alias = {site: site if name_sites else f"site {k}" for k, site in enumerate(result["sites"], start=1)}
    said = _aliasing(alias, run.variables)
    verdict = result["verdict"]
    prepared = preparation(run)
    return {
        "schema": SCHEMA,
        "plan": run.plan.name,
        "run": manifest["run"],
        "state": result["state"],
        "begun": manifest["created_at"],
        "ended": manifest["ended_at"],
        "data": {
            "sites": [
                {"site": alias[site], "rows": of["n_samples"], "rows_used": of["rows_used"]}
                for site, of in result["sites"].items()
            ],
            "rows": sum(of["n_samples"] for of in result["sites"].values()),
            "rows_used": rows_used(result),
            "preparation": [said(text) for text in (prepared["steps"] if prepared else ())],
            "variables": variables_of(run),
        },
        "settings": [
            {"name": said(one["name"]), "value": said(_cut(one["value"])), "default": one["default"]}
            for one in settings(run)
            if one["changed"] and one["name"] != "name" and not one["name"].startswith("dictionary")
        ],
        "privacy": _privacy(run, alias, said),
        "assumptions": {
            **{
                key: [whole(said(text)) for text in verdict[key] or ()]
                for key in ("assumed", "contradicted", "tested", "not_tested", "not_testable", "reasons")
            },
            "hidden_causes_seen": verdict["hidden_causes_seen"],
        },
        "cautions": [
            said(text) for text in [*cautions(run, None), *map(whole, in_words([*unused_notes(result["unused"])]))]
        ],
        "graph": {
            "class": result["graph_class"],
            "says": said(learned_sentence(run, learned_edges(run), [])),
            "edges": _edges(run),
            "draws": verdict["draws"],
        },
        "software": {
            "coordinator": manifest["versions"],
            "sites": {alias.get(site, said(site)): told for site, told in manifest["site_versions"].items()},
        },
        "digests": {"plan": manifest["plan_digest"], **manifest["sha256"]},
    }


def _privacy(run: ReportedRun, alias: Mapping[str, str], said: Said) -> dict[str, Any] | None:
    """None: the plan is not private."""
    told = run.result["privacy"]
    if told is None:
        return None
    return {
        "guarantee": said(told["guarantee"]),
        "no_guarantee_because": [said(text) for text in told["no_guarantee_because"]],
        "sites": {
            alias.get(site, said(site)): {key: of[key] for key in ("epsilon", "delta")}
            for site, of in told["sites"].items()
        },
    }


def _edges(run: ReportedRun) -> list[dict[str, Any]]:
    """The strongest first."""
    marks = marks_of_edges(run)
    return [
        {
            "source": one.source,
            "target": one.target,
            "directed": one.directed,
            "directed_by": DIRECTED_BY.get(one.directed_by, one.directed_by),
            "if_causes_may_be_hidden": marks.get((one.source, one.target), ("", ""))[0],
            "weight": one.weight,
            "interval": one.interval,
            "level": one.source_level or one.target_level,
            "coefficients": len(one.coefficients),
            "standardised": one.standardised,
            "share": None if one.bootstrap is None else one.bootstrap.adjacent,
        }
        for one in learned_edges(run)
    ]


def _aliasing(alias: Mapping[str, str], variables: Sequence[str]) -> Said:
    """Replaces names of sites, as whole words, that are no names of variables."""
    names = sorted((site for site in alias if site not in variables), key=len, reverse=True)
    if not names:
        return lambda text: text
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
    return lambda text: pattern.sub(lambda found: alias[found[0]], text)


def _still(svg: str) -> str:
    """Without what is told of edges, which may name sites: nobody points at paper."""
    return re.sub(r"<title>.*?</title>", "", svg, flags=re.DOTALL)


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]} ..."
