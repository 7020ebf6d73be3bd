"""The report of a run: one HTML page that needs nothing beside it."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fedbnsl.console.wording import levels_in_words
from fedbnsl.errors import ResultError
from fedbnsl.files import durable
from fedbnsl_client.data.preparation import has_intercept
from fedbnsl_server.results.categories import FEW_RECORDS
from fedbnsl_server.results.numbers import between, percent, ranged, signed
from fedbnsl_server.results.sentences import DIRECTED_BY, checks_in_words, directions_in_words, in_words, whole
from fedbnsl_server.results.unused import unused_notes
from fedbnsl_server.store.command import COMMAND, another_folder
from fedbnsl_workbench.pages.render import render, script
from fedbnsl_workbench.report import cautions as report_cautions
from fedbnsl_workbench.report import charts as report_charts
from fedbnsl_workbench.report import effects as report_effects
from fedbnsl_workbench.report import gaps as report_gaps
from fedbnsl_workbench.report import hidden_causes as report_marks
from fedbnsl_workbench.report import history as report_course
from fedbnsl_workbench.report import learned as report_graph
from fedbnsl_workbench.report import prepared as report_preparation
from fedbnsl_workbench.report import scores as report_scores
from fedbnsl_workbench.report import sentences
from fedbnsl_workbench.report import summary as report_summary
from fedbnsl_workbench.report.run_files import ReportedRun, read_run
from fedbnsl_workbench.scoring.evaluation import evaluate

# A longer table is set small, in a box that scrolls.
_LONG = 60
# Pixels that the page of a phone leaves to a drawing.
_PHONE = 350

_SCORES: Sequence[tuple[str, str]] = (
    ("SHD: edges to add, remove or reverse", "shd"),
    ("SID: effects between pairs that the graph gets wrong", "sid"),
    ("edges", "n_edges"),
    ("missing", "missing"),
    ("extra", "extra"),
    ("reversed", "reversed"),
    ("share of true edges found (TPR)", "tpr"),
    ("share of learned edges that are wrong (FDR)", "fdr"),
    ("F1", "f1"),
    ("pairs found, whatever the direction (recall)", "skeleton_recall"),
)

_CLASS_SCORES: Sequence[tuple[str, str]] = (
    ("SHD of the classes: pairs with another mark", "shd"),
    ("SID over the class, least and largest", "sid"),
    ("directed edges", "n_directed"),
    ("undirected edges", "n_undirected"),
    ("pairs found, whatever the direction (recall)", "skeleton_recall"),
    ("linked pairs that are so in the truth (precision)", "skeleton_precision"),
    ("F1 of linked pairs", "skeleton_f1"),
)

_PLACEHOLDERS = (
    (" TABLES ", "the folder with the tables, site-1.csv, ..."),
    (" FEDERATION ", "the folder that fedbnsl coordinator init made (on one machine alone: --insecure instead)"),
    (" SITE_FOLDER", "the site's own folder, made by fedbnsl participant init, in which the plan is approved"),
    (" --identity SITE_FOLDER", "without a policy, the site's folder made by fedbnsl participant request"),
    (" SITE ", "the site's name"),
    (" TABLE ", "the site's table"),
)


def write_report(run: Path, *, truth: Path | None = None, data: Path | None = None, out: Path | None = None) -> Path:
    """Write the report of a run folder and return its path.

    Parameters
    ----------
    truth
        CSV with source,target and perhaps weight; None: RUN/data/truth.csv, if there.
    data
        Folder with the tables, for means and standard deviations; None: RUN/data, if there and the run was not private.
    out
        The file; None: RUN/report.html. An existing file is replaced.

    Raises
    ------
    ResultError
        If a file of the run, or the truth, cannot be read, or the report cannot be written.
    DataError
        If a table cannot be used.
    """
    return write_page(read_run(run, truth=truth, data=data), out)


def write_page(run: ReportedRun, out: Path | None = None) -> Path:
    """Write the report of a run that was read; see `write_report`."""
    out = out or run.path / "report.html"
    durable.write_text(out, report_page(run))
    return out


def report_page(run: ReportedRun) -> str:
    """The page as text."""
    result = run.result
    scores = None if run.truth is None else evaluate(run.path, run.truth.path, tau=None)
    command = _command(run)
    learned, missing = report_graph.learned_edges(run), report_graph.missing_edges(run)
    return render(
        "report.html.j2",
        script=script("report.js"),
        run=run,
        result=result,
        plan=run.plan,
        manifest=result["manifest"],
        versions_at_sites=_versions_at_sites(result["manifest"]["site_versions"]),
        long=_LONG,
        phone=_PHONE,
        date=_day(result["manifest"]["ended_at"]),
        n_rows=sum(site["n_samples"] for site in result["sites"].values()),
        n_used=report_preparation.rows_used(result),
        reason=result["reason"].rstrip("."),
        learned_sentence=sentences.learned_sentence(run, learned, missing),
        unused=in_words([*unused_notes(result["unused"])]),
        verdict=_checks(result["verdict"]),
        learned=learned,
        curved_edges=any(edge.along_curve is not None for edge in learned),
        columns=sentences.columns(run),
        estimation=sentences.estimation_words(run),
        unknown=sentences.unknown(run),
        unsure=report_graph.unsure_pairs(run),
        hidden_causes=report_marks.hidden_causes(run),
        marks=report_marks.marks_of_edges(run),
        owners=result["columns"] or {},
        unsupported=report_marks.unsupported(run),
        drawing_of_marks=report_marks.drawing_of_marks(run),
        legend_of_marks=report_marks.legend_of_marks(report_marks.hidden_causes(run)),
        regressions=report_summary.reported(result),
        in_numbers=report_summary.in_numbers,
        fits=_variables(run),
        of_lines=report_cautions.left_by_lines(run),
        no_intercept=report_preparation.no_intercept(run),
        effects=report_effects.effect_table(run),
        directed_by=DIRECTED_BY,
        signed=signed,
        between=between,
        ranged=ranged,
        percent=percent,
        ways=report_graph.ways,
        heterogeneity=report_graph.heterogeneity,
        missing=missing,
        has_true_weights=run.truth is not None and run.truth.reference.weights is not None,
        drawing=report_graph.drawing(run),
        lagged=bool(report_graph.before_of(run)),
        legend=report_graph.legend(run),
        isolated=report_graph.isolated(run),
        weight_map=report_charts.weight_map(run.W, run.columns.names),
        scaled=run.divided_by is not None,
        preparation=report_preparation.preparation(run),
        gaps=report_gaps.who_has_what(run),
        categories=_categories(result["categories"]),
        curves=result["curves"],
        curved_effects=report_charts.curved_effects(result["curves"], result["units"]),
        tables_units=report_preparation.tables_units(run),
        units=result["units"],
        levels=levels_in_words(result["levels"], report_summary.references_of(learned, result)),
        variance_units=report_preparation.variance_units(run),
        has_intercept=has_intercept(run.plan.preparation),
        refitted=sentences.n_refits(run) > 0,
        estimate_sentence=sentences.estimate_sentence(run),
        planned_rounds=report_course.planned_rounds(run),
        settings=report_course.settings(run),
        charts=report_course.charts(run),
        attendance=report_course.attendance(run),
        scores_of_sites=report_course.outlier_scores(run),
        ejected={one["site"]: one["words"] for one in report_course.ejected(run)},
        bytes_rows=report_course.bytes_rows(run),
        cautions=report_cautions.cautions(run, scores),
        variances=report_cautions.variances(run),
        scales=report_cautions.scale_table(run),
        path=report_cautions.threshold_path(run),
        scores=_score_rows(scores, of_class=run.is_class) if scores else [],
        scored=report_scores.scored(result["validation"]),
        command=command,
        placeholders=[(word, meaning) for word, meaning in _PLACEHOLDERS if any(word in line for line in command)],
    )


def _variables(run: ReportedRun) -> list[dict[str, Any]]:
    """Of each variable its fit, and how it was taken."""
    nothing = {**dict.fromkeys(("r2", "intercept", "residual_variance")), "how": "not known", "why": "not known"}
    fit, taken = run.result["fit"], run.result["taken"]
    return [
        {"name": name, **nothing, **fit.get(name, {}), **taken.get(name, {})}
        for name in run.variables
        if name in fit or name in taken
    ]


def _categories(told: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """Tables of variables given their parents; None: the graph is not by counts."""
    if told is None:
        return None
    return {"few": FEW_RECORDS, "variables": [{"name": name, **one} for name, one in told.items()]}


def _day(moment: str) -> str:
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M} UTC"


def _versions_at_sites(told: Mapping[str, Mapping[str, str]]) -> list[tuple[Mapping[str, str], list[str]]]:
    """What the sites computed with: sites with equal versions together."""
    alike: list[tuple[Mapping[str, str], list[str]]] = []
    for site, versions in told.items():
        for known, sites in alike:
            if known == versions:
                sites.append(site)
                break
        else:
            alike.append((versions, [site]))
    return alike


def _checks(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The assumption checks in whole sentences, with the signs that result.json writes in ASCII."""
    signs = {" -> ": " \u2192 ", " -- ": " \u2014 ", "(I^2 ": "(I\u00b2 "}
    contradicted = [whole(text) for text in verdict["contradicted"]]
    for written, sign in signs.items():
        contradicted = [text.replace(written, sign) for text in contradicted]
    return {
        **{
            key: list(map(whole, verdict[key])) for key in ("assumed", "incomplete", "few_rows", "outlying", "withheld")
        },
        "contradicted": contradicted,
        "reasons": list(map(whole, verdict["reasons"])),
        "not_described": verdict["not_described"],
        "majority": verdict["majority"],
        "checks": checks_in_words(verdict) if verdict["assumed"] else [],
        "in_words": directions_in_words(verdict),
        "directed_by": {**dict.fromkeys(DIRECTED_BY, 0), **verdict["directed_by"]},
    }


def _score_rows(scores: dict[str, Any], *, of_class: bool) -> list[dict[str, Any]]:
    """Rows of the table of scores: of classes where a class was learned, and the truth has one."""
    run, empty, chance = scores["scores"], scores["empty_graph"], scores["random_dag"]
    labels = _SCORES
    if of_class and (classes := scores["class_scores"]) is not None:
        run, empty, labels = classes["run"], classes["empty_graph"], _CLASS_SCORES
        shd = classes["random_dag"]["shd"]
        chance = {"mean": {"shd": shd["mean"]}, "std": {"shd": shd["std"]}}
    return [
        {
            "key": key,
            "label": label,
            "run": run[key],
            "empty": empty.get(key),
            "chance": chance["mean"].get(key),
            "spread": chance["std"].get(key),
        }
        for label, key in labels
    ]


def _command(run: ReportedRun) -> list[str]:
    """Commands that repeat the run from its folder: those kept there, else with TABLES, ... to be filled in."""
    if (run.path / COMMAND).exists():
        try:
            return (run.path / COMMAND).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ResultError(f"{run.path / COMMAND} cannot be read: {error}") from None
    out = shlex.quote(another_folder(run.path))
    if not (run.path / "run.json").exists():
        noise = run.result["manifest"]["seeds"].get("noise")
        options = " --public-data" * (run.plan.privacy is not None) + f" --noise-seed={noise}" * (noise is not None)
        return [f"fedbnsl simulate plan.toml{options} --data TABLES --out {out}"]
    without_policy = "# or: fedbnsl participant join --identity SITE_FOLDER --data TABLE --public-data"
    return [
        f"fedbnsl coordinator serve plan.toml --federation FEDERATION --out {out}",
        "fedbnsl participant join --policy SITE_FOLDER",
        *([] if run.plan.privacy else [without_policy]),
    ]
