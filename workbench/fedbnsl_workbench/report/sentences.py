"""Paragraphs that only the page has, made from what `run_files` has read: the rest is in `results.sentences`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedbnsl.console.wording import counted
from fedbnsl.protocol.messages import Yields
from fedbnsl.rounds.kinds import KINDS
from fedbnsl_server.results.sentences import note, sentence
from fedbnsl_workbench.report.learned import EdgeRow
from fedbnsl_workbench.report.prepared import intercept_words
from fedbnsl_workbench.report.run_files import ReportedRun, Truth


def learned_sentence(run: ReportedRun, learned: Sequence[EdgeRow], missing: Sequence[EdgeRow]) -> str:
    """One sentence for the head, and with a truth another."""
    d = len(run.variables)
    if not learned:
        if run.searched and not run.plan.threshold:
            return f"The search kept no edge among {d} variables."
        return f"No edge among {d} variables exceeded the threshold {run.plan.threshold:g}."
    largest, undirected = max(learned, key=lambda edge: edge.strength), sum(not edge.directed for edge in learned)
    weight = _in_short(largest.weight or 0.0)
    if largest.standardised is not None:
        weight = f"{weight}, without units {_in_short(largest.standardised)}"
    kind = f"edge{'s' if len(learned) > 1 else ''} among {d} variables"
    words = f"{len(learned)} directed {kind}"
    if undirected:
        words = f"{len(learned)} {kind}, {len(learned) - undirected} of them directed"
    pair = f"{largest.source} {largest.mark} {largest.target}"
    if largest.along_curve is None:
        words += f"; the largest weight is {pair} ({weight})"
    else:
        words += f"; the strongest is {pair} (along a curve, without units {largest.along_curve:.2f})"
    if run.truth is None:
        return f"{words}."
    return f"{words}. {_against_truth(run.truth, learned, missing)}"


def _in_short(weight: float) -> str:
    """Two decimals where they say something, otherwise three digits."""
    return f"{weight:+.2f}" if 0.1 <= abs(weight) < 1e4 or not weight else f"{weight:+.3g}"


def _against_truth(truth: Truth, learned: Sequence[EdgeRow], missing: Sequence[EdgeRow]) -> str:
    among = f" among the {len(truth.reference.common)} variables in common" if truth.reference.only_reference else ""
    counts = Counter(edge.verdict for edge in learned)
    wrong = {kind: counts[kind] for kind in ("reversed", "open", "extra")} | {"missing": len(missing)}
    if (truth.marks != truth.edges).any():
        n_true, what = int((truth.marks | truth.marks.T).sum()) // 2, "the truth's equivalence class"
    else:
        n_true, what = int(truth.reference.edges.sum()), "the truth"
    correct = counts["correct"]
    opened = f"{wrong['open']} undirected in one of the two, " if wrong["open"] else ""
    # The scores are of the class, which directs undecided edges.
    shd = "" if any(edge.directed_by == "undecided" for edge in learned) else f" (SHD {sum(wrong.values())})"
    return (
        f"Of the {counted(n_true, 'edge')} of {what}{among}, {correct} {'was' if correct == 1 else 'were'} found; "
        f"{wrong['reversed']} reversed, {opened}{wrong['missing']} missing, {wrong['extra']} extra{shd}."
    )


def n_refits(run: ReportedRun) -> int:
    """How many rounds refitted the weights."""
    return sum(KINDS[entry["kind"]].YIELDS is Yields.WEIGHTS for entry in run.rounds)


def estimate_sentence(run: ReportedRun) -> str:
    """What an estimate is."""
    plan, refits = run.plan, n_refits(run)
    intercept, scaled = intercept_words(run), " without units" * (run.divided_by is not None)
    if run.searched:
        moments = "each site's moments, averaged over the sites"
        if plan.privacy:
            moments = "the sites' noisy moments, pooled"
        elif plan.weighs_rows:
            moments = "the sites' moments, pooled over their rows"
        cut = (
            f"Edges whose coefficient{scaled} was at most {plan.threshold:g} (threshold) were dropped from it, and the "
            "others estimated again without them."
            if run.result["state"] == "finished" or not plan.privacy
            else f"The run ended before its last search: edges whose coefficient{scaled} is at most "
            f"{plan.threshold:g} (threshold) were cut, and the others not estimated again."
        )
        graph = "the graph that was searched"
        if not plan.threshold:
            cut = "The search alone decided which edges there are: no threshold cut any."
        if not (run.marks == run.directed).all():
            graph = "a DAG of the class that was searched"
            cut += (
                " The estimate of an undirected edge is that of source \u2192 target in this DAG; another DAG of "
                "the class may have another."
            )
        return f"An estimate is a least-squares coefficient, {intercept}, on {graph}, from {moments}. {cut}"
    if not refits:
        shrunk = ", shrunk towards zero by the L1 penalty" if plan.l1_weight else ""
        return f"An estimate is the raw consensus weight{shrunk}: no refit followed."
    graph = f"of all raw weights{scaled} above {plan.refit_threshold:g} (refit_threshold)"
    if refits > 1:
        graph = f"that the refit before left, at first that {graph}"
    average = "average, by rows," if plan.weighs_rows else "average"
    return (
        f"An estimate is the {average} of the sites' least-squares coefficients, {intercept}, on the graph "
        f"{graph}. Edges whose coefficient{scaled} is at most {plan.threshold:g} (threshold) were cut after that, and "
        "the others not estimated again: an estimate is also adjusted for parents that were cut."
    )


def columns(run: ReportedRun) -> dict[str, bool]:
    """Which optional columns the table of edges has: those in which any edge has something."""
    edges = run.result["edges"]
    return {
        "direction": any(edge["directed_by"] or not edge["directed"] for edge in edges),
        "marks": run.result["hidden_causes"] is not None,
        "interval": any(edge["interval"] for edge in edges),
        "shares": any(edge["bootstrap"] for edge in edges),
        "sites": any(edge["sites"] for edge in edges),
        "without": any(edge["without_a_site"] for edge in edges),
    }


def estimation_words(run: ReportedRun) -> str:
    """What intervals and shares are, and from what; empty where the run has none."""
    told: Mapping[str, Any] = run.result["estimation"] or {"noise_std": 0.0, "draws": 0}
    known = columns(run)
    words: list[str] = []
    if known["interval"]:
        noise = " and the noise of privacy" * bool(told["noise_std"])
        words.append(
            f"Intervals cover 95 % and count sampling error{noise}, given the graph: they do not count that the graph "
            "was chosen with the same data."
        )
    if rows := told.get("dependent_rows"):
        words.append(
            f"They count that rows of a group depend on each other, as the other {rows['other_rows']:.3g} rows of its "
            f"group say part of what a row says. The search counted {rows['counted']:,.0f} rows, as if all pairs of "
            "variables depended on it as much as the pair that does most."
        )
    if known["shares"]:
        draws = f" {told['draws']:,}" if told["draws"] else ""
        drawn = "moments drawn again"
        if run.result["categories"]:
            drawn = (
                "records drawn from the learned network (with each arrow reversed as often as scores tell; shares are "
                "still too sure)"
            )
        words.append(
            f"Bootstrap shares say in which part of{draws} graphs, each searched from {drawn}, the pair is "
            "linked, and which way it points there."
        )
    if known["without"]:
        words.append("“Without a site” counts the searches that left out one site and still link the pair.")
    return " ".join(words)


def unknown(run: ReportedRun) -> list[str]:
    """Sentences on what no edge of the run has."""
    if not run.result["edges"]:
        return []
    known = columns(run)
    if not any(known[name] for name in ("interval", "shares", "sites", "without")):
        why = (
            "its result.json has none"
            if run.searched
            else "these need a search with moments (moments_rounds), which the plan does not have"
        )
        return [f"No standard errors, bootstrap shares or comparisons of sites are given: {why}."]
    no_draws = "the plan asks for no draws (bootstrap = 0)" if not run.plan.bootstrap else "the run made no draws"
    beginning = sentence(note("sites_untested", why=""))
    untested = [words for words in run.result["verdict"]["not_tested"] if words.startswith(beginning)]
    why = "that needs each site's own moments, which the coordinator of this run does not have"
    lacking = {
        "interval": "Standard errors and intervals are not known in this run.",
        "shares": f"There are no bootstrap shares: {no_draws}.",
        "sites": "Whether effects differ between sites is not known: "
        f"{untested[0].removeprefix(beginning) if untested else why}.",
        "without": "How far the graph rests on one single site is not known: no search left out a site.",
    }
    return [words for name, words in lacking.items() if not known[name]]
