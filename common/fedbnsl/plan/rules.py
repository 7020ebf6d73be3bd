"""Which settings go together: the one value that a choice leaves to another setting, limits between settings, names."""

import math
from collections.abc import Callable, Iterator

from fedbnsl.console.shown import steers_terminal
from fedbnsl.console.wording import first_few
from fedbnsl.plan.interventions import faults
from fedbnsl.plan.limits import LARGEST_SQUARE, MOST_CELLS, MOST_IN_TABLE
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.plan.settings import PRIVATE_SOLVERS, Settings
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name

# Every private step costs budget. More steps than this mean that somebody left the non-private default unchanged.
_MOST_PRIVATE_STEPS = 10_000

# Of two sites that differ, neither is in a majority.
FEWEST_FOR_ROBUST = 3

_NO_EXPERIMENTS = {
    "class": "without moments_rounds and graph_class = 'cpdag'",
    "privacy": "with [privacy]",
    "consensus": "with a consensus other than mean",
    "preparation": "without [preparation] of intercept 'site' and weighting 'rows'",
    "groups": "with rows of groups or times",
    "levels": "with variables that are no continuous ones",
}

_FEWEST_HONEST = 2
"""Sites that share the noise of secure aggregation, at least: of one alone, the sum would be its own release."""

_ESTIMATED = "with [privacy], except for dp-pgcd with smoothness = 'estimated'"

_CHOICES: dict[str, Callable[[Settings], bool]] = {
    "with [privacy]": lambda plan: plan.privacy is not None,
    _ESTIMATED: lambda plan: (
        plan.privacy is not None and (plan.local_solver != "dp-pgcd" or plan.privacy.smoothness != "estimated")
    ),
    "with privacy.secure_aggregation": lambda plan: plan.secure_aggregation,
    "with closed-form or noisy-covariance": lambda plan: plan.dense_messages,
    "with moments_rounds": lambda plan: plan.moments_rounds > 0,
    "without moments_rounds": lambda plan: plan.moments_rounds == 0,
    "with final_search = 'steps'": lambda plan: plan.sends_steps,
}

# The one value that a choice leaves to another setting, and why. Not types by solver, search and privacy: a file could
# then not hold a setting that its choices do not use, and --set of a choice alone would fail on what is left of others.
_FIXED: tuple[tuple[str, str, object, str], ...] = (
    ("with [privacy]", "refit_rounds", 0, "a refit is one more release"),
    ("with [privacy]", "counts_rounds", 0, "exact counts would be released"),
    ("with [privacy]", "send_step", 0, "what was released is sent as it is"),
    ("with [privacy]", "regressions_rounds", 0, "their sums are exact, and each would be one more release"),
    (_ESTIMATED, "moments_rounds", 0, "their first scales are estimated second moments"),
    (_ESTIMATED, "preparation", None, "its statistics are paid for as estimated second moments"),
    ("with privacy.secure_aggregation", "rounds", 0, "an ADMM round needs the weights of each site"),
    ("with privacy.secure_aggregation", "quorum", 0, "masks cancel over all"),
    ("with privacy.secure_aggregation", "consensus", "mean", "the coordinator knows sums only"),
    ("with closed-form or noisy-covariance", "send_tolerance", 0, "their messages are dense"),
    ("with closed-form or noisy-covariance", "send_step", 0, "their messages are dense"),
    ("with moments_rounds", "refit_rounds", 0, "the search refits"),
    ("without moments_rounds", "graph_class", "dag-equal-variance", "only their search can tell a class"),
    ("with final_search = 'steps'", "local_solver", "dp-pgcd", "the search explains its steps"),
    ("with final_search = 'steps'", "moments_rounds", 0, "they have another search"),
    ("with final_search = 'steps'", "consensus", "mean", "the search trusts all sites alike"),
    ("with final_search = 'steps'", "send_tolerance", 0, "the search needs every step"),
    ("with final_search = 'steps'", "preparation", None, "the search compares variances in the tables' own units"),
)


def broken_rules(plan: Settings) -> Iterator[tuple[str, str]]:
    """Settings that do not go together with others, each with the rule that it breaks."""
    solver, privacy = plan.local_solver, plan.privacy
    if any(map(steers_terminal, plan.name)):
        yield "name", "without control or bidirectional characters"
    for setting, names in (("variables", plan.variables), ("sites", plan.sites)):
        if len(set(names)) < len(names):
            yield setting, "names without repetition"
    if len(plan.variables) == 1:
        yield "variables", "at least two names (or none)"
    curved = [repr(name) for name, entry in plan.dictionary.root.items() if entry.shape == "curved"]
    if curved and not (plan.searches_curves or plan.may_ask_for_squares):
        yield "dictionary", f"no shape = 'curved' where the plan does not look for curves: {first_few(curved)}"
    unknown = [repr(name) for name in plan.variables if name not in plan.dictionary]
    if plan.dictionary and unknown:
        yield "variables", f"names that the data dictionary has; it lacks {first_few(unknown)}"
    if fault := next(plan.absent.faults(plan.n_participants, plan.sites, plan.in_tables), None):
        yield "absent", fault
    yield from _broken_interventions(plan)
    if plan.absent and not plan.uses_gaps:
        yield "absent", "empty unless rows with gaps are completed: [preparation] missing = 'em', or private moments"
    if plan.privacy and (pairs := plan.absent.never_together(plan.n_participants)):
        yield "absent", f"of no two variables that no site has together, such as {' and '.join(map(repr, pairs[0]))}"
    if plan.privacy and plan.absent and plan.consensus != "mean":
        yield "consensus", "mean with absent variables and privacy: a site that lacks one would have a vote on it"
    of_one = [name for name, sites in plan.absent.by_variable().items() if len(sites) > plan.n_participants - 2]
    if plan.secure_aggregation and of_one:
        yield "absent", f"so that two sites or more have each variable: a sum would tell {of_one[0]!r} of one site"
    if not all(map(is_site_name, plan.sites)):
        yield "sites", SITE_NAME_RULE
    if plan.sites and len(plan.sites) != plan.n_participants:
        yield "sites", "as many names as n_participants"
    if plan.quorum > plan.n_participants:
        yield "quorum", "at most n_participants"
    if plan.consensus != "mean" and plan.needed < FEWEST_FOR_ROBUST:
        fewer = f"fewer than {FEWEST_FOR_ROBUST} sites in a round (n_participants, quorum)"
        yield "consensus", f"mean with {fewer}: of two, nothing tells which one is wrong"
    if large := next(_uncountable_families(plan), ""):
        limits = f"{MOST_CELLS} cells or {MOST_IN_TABLE} variables"
        yield "counts_rounds", f"0, or fewer parents required: the table of {large} has more than {limits}"
    if plan.refit_threshold > plan.threshold and not plan.moments_rounds:
        yield "refit_threshold", "at most threshold"
    if plan.send_step and not (math.frexp(plan.send_step)[0] == 0.5 and 2.0**-32 <= plan.send_step <= 1.0):
        yield "send_step", "0, or a power of two from 2^-32 to 1, such as 0.001953125"
    if solver == "frank-wolfe" and not plan.l1_weight:
        yield "l1_weight", "above 0 with frank-wolfe, which needs the L1 term to bound its search"
    if plan.rounds == 0 and not (privacy and plan.moments_rounds):
        yield "rounds", "at least 1 without private moments_rounds"
    if privacy is not None:
        yield from _broken_privately(plan, privacy)
    elif solver in PRIVATE_SOLVERS:
        yield "local_solver", "pgcd, closed-form or frank-wolfe, without [privacy] (epsilon)"
    elif plan.moments_rounds > 2:
        yield "moments_rounds", "at most 2 without [privacy]"
    elif plan.preparation and plan.preparation.scale != "none" and not plan.refit_rounds + plan.moments_rounds:
        last = "refit_rounds or moments_rounds, which give weights in the tables' own units"
        yield "preparation", f"of scale 'none' without {last}"
    for choice, setting, value, why in _FIXED:
        if getattr(plan, setting) != value and _CHOICES[choice](plan):
            yield setting, f"{'absent' if value is None else value} {choice}: {why}"


def _broken_interventions(plan: Settings) -> Iterator[tuple[str, str]]:
    """The part of `broken_rules` that concerns interventions."""
    if not plan.interventions:
        return
    if fault := next(faults(plan.interventions, plan.n_participants, plan.sites, plan.in_tables), None):
        yield "interventions", fault
    if because := plan.no_experiments_because:
        yield "interventions", f"absent {_NO_EXPERIMENTS[because]}: sites are not compared there one by one"


def _uncountable_families(plan: Settings) -> Iterator[str]:
    """Variables with required parents whose table of counts would be too large to be asked for."""
    parents: dict[str, set[str]] = {}
    for source, target in plan.knowledge.required if plan.counted else ():
        parents.setdefault(target, {target}).add(source)
    for family in parents.values():
        cells = math.prod(len(plan.dictionary[name].levels) for name in family if name in plan.dictionary)
        if cells > MOST_CELLS or len(family) > MOST_IN_TABLE:
            yield " and ".join(map(repr, sorted(family)))


def _broken_privately(plan: Settings, privacy: Privacy) -> Iterator[tuple[str, str]]:
    """The part of `broken_rules` that concerns private plans."""
    solver, preparation = plan.local_solver, plan.preparation
    if solver not in PRIVATE_SOLVERS:
        yield "local_solver", f"one of {', '.join(PRIVATE_SOLVERS)}, with [privacy]"
    if solver != "noisy-covariance" and plan.local_steps > _MOST_PRIVATE_STEPS:
        yield "local_steps", f"at most {_MOST_PRIVATE_STEPS} with [privacy]: every step shares the budget"
    used = {"intercept": "site", "scale": "pooled", "missing": "complete-cases"}
    if preparation is not None and any(getattr(preparation, name) != value for name, value in used.items()):
        yield "preparation", "of intercept 'site', scale 'pooled' and missing 'complete-cases' with [privacy]"
    for setting in ("feature_bounds", "second_moments"):
        if len(getattr(privacy, setting)) not in (0, 1, len(plan.column_names)):
            yield f"privacy.{setting}", "one value for all, or one for each column"
    if solver != "noisy-covariance" and privacy.smoothness == "estimated":
        if preparation is not None and privacy.feature_bounds:
            yield "privacy.feature_bounds", "empty with [preparation]: the data dictionary has ranges"
        if preparation is None and not privacy.feature_bounds:
            instead = "(or [preparation], and a data dictionary with ranges)"
            yield "privacy.feature_bounds", f"given for smoothness = 'estimated' {instead}"
    if privacy.persons_by == "rows" and plan.dictionary and not plan.dictionary.rows.averages:
        yield "privacy.persons_by", "means, unless the data dictionary makes one record of a person: kind = 'group'"
    if plan.value_type == "float32" and privacy.moments_norm_bound**2 > LARGEST_SQUARE:
        yield "value_type", f"float64 with squared bounds above {LARGEST_SQUARE:g}"
    if privacy.sites_per_person > plan.n_participants:
        yield "privacy.sites_per_person", "at most n_participants"
    if plan.validation == "sums":
        yield "validation", "at_site, or none, with [privacy]: exact sums would be released; at_site sends nothing"
    if not privacy.secure_aggregation:
        return
    if not plan.moments_rounds:
        yield "moments_rounds", "at least 1 with privacy.secure_aggregation"
    if plan.n_honest < _FEWEST_HONEST:
        least = f"at least {_FEWEST_HONEST} more than privacy.colluding, and at least 3, with secure aggregation"
        yield "n_participants", f"{least} (without: --set privacy.secure_aggregation=false)"
    colluding = plan.n_participants - plan.n_honest
    if privacy.retries > colluding:
        most = f"at most the number of colluding sites, {colluding}"
        yield "privacy.secure_aggregation_retries", f"{most}: a lost site is one of them"
