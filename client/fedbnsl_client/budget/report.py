"""Report what a site's datasets have spent and have left, and what a run of a plan would cost."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from fedbnsl.console.wording import counted
from fedbnsl.errors import BudgetExhaustedError, PolicyRefusal
from fedbnsl.graphs.family_moments import FEW_COLUMNS
from fedbnsl.plan.limits import MOST_IN_TABLE
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.plan_table import shown_settings
from fedbnsl.plan.preparation import BINS_AN_OCTAVE, FIRST_BIN, MOST_EM_ROUNDS
from fedbnsl.privacy import zcdp
from fedbnsl.privacy.calibration import Price, price_of
from fedbnsl.privacy.report import adversary, epsilon_at, price_lines, price_summary
from fedbnsl.rounds.hinges import KNOTS
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl.rounds.noise import MOST_PAIRS
from fedbnsl_client.budget.approvals import Approval, authority_in
from fedbnsl_client.budget.known_runs import known_runs
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.ledger_chain import Entry
from fedbnsl_client.budget.policy import (
    DatasetPolicy,
    Policy,
    check_cost,
    check_cost_against_all,
    check_cost_per_person,
    not_registered,
)
from fedbnsl_client.budget.registrations import Block, Registration
from fedbnsl_client.budget.spending import Cap, Spending

_NO_NAMES: Mapping[str, str] = {}


def spending(dataset: DatasetPolicy, ledger: Ledger) -> dict[str, Any]:
    """Spent and left of a dataset; epsilon is derived, never stored."""
    spent, unprotected = ledger.payments.spending(dataset.id), ledger.payments.unprotected(dataset.id)
    nothing = unprotected or bool(ledger.sealed_since)
    registered = ledger.registrations.find(dataset.id)
    blocks = () if registered is None else registered.blocks

    def told(spending: Spending) -> dict[str, float]:
        return {"zcdp": zcdp.zcdp_of(spending.units), "epsilon": spending.epsilon(dataset.max_delta)}

    def left(cap: Cap, spent: Spending, *, gaussian: bool = True) -> dict[str, float]:
        """Epsilons do not add up, zCDP does: the epsilon is that of one more run that spends all that is left."""
        return told(Spending() if nothing else cap.left(spent, gaussian=gaussian))

    in_all, all_cap = ledger.payments.spending(dataset.id, against_all=True), dataset.cap_against_all
    of_all = {"spent_against_all": told(in_all)} if in_all.units != spent.units else {}
    if of_all and all_cap is not None:
        of_all["left_against_all"] = left(all_cap, in_all)
    most_sites = ledger.payments.sites_per_person(dataset.id)
    at_sites = {k: ledger.payments.spending(dataset.id, at_sites=k) for k in sorted({2, 3, most_sites} - {1})}
    per_person = {} if most_sites == 1 else {"left_per_person": left(dataset.cap_per_person, at_sites[most_sites])}
    return {
        **of_all,
        **per_person,
        "sites_per_person": most_sites,
        "dataset": dataset.id,
        "delta": dataset.max_delta,
        "max_epsilon": dataset.max_epsilon,
        "unprotected": unprotected,
        "one_budget_with": sorted(ledger.registrations.account(dataset.id) - {dataset.id}),
        "accounting": "Gaussian" if spent.gaussian else "zCDP",
        "spent": told(spent),
        "spent_at_sites": {str(k): told(spending) for k, spending in at_sites.items()},
        "left": left(dataset.cap, spent),
        "left_if_not_gaussian": left(dataset.cap, spent, gaussian=False),
        "blocks": [_of_block(dataset, one, ledger) for one in blocks],
    }


def _of_block(dataset: DatasetPolicy, block: Block, ledger: Ledger, *, delta: float | None = None) -> dict[str, Any]:
    """Spent and left of the records of one block, at the policy's delta or another one."""
    delta = dataset.max_delta if delta is None else delta
    payments, only = ledger.payments, (block.number,)
    spent, unprotected = payments.spending(dataset.id, blocks=only), payments.unprotected(dataset.id, blocks=only)
    left = Spending() if unprotected else dataset.cap.left(spent, gaussian=True)
    return {
        "block": block.number,
        "n_samples": block.n_samples,
        "since": block.time,
        "delta": delta,
        "spent": {"zcdp": zcdp.zcdp_of(spent.units), "epsilon": spent.epsilon(delta)},
        "left": {"zcdp": zcdp.zcdp_of(left.units), "epsilon": left.epsilon(delta)},
        "unprotected": unprotected,
    }


def approval_lines(
    plan: Plan, dataset: DatasetPolicy, ledger: Ledger, *, blocks: Sequence[int] = (), every: bool = False
) -> list[str]:
    """What a run of a plan would cost a registered dataset, or blocks of it, and leave of its budget; then the plan.

    With `every` also the settings that are the defaults.
    """
    if plan.privacy is None:
        lines = [f"no privacy: {one}" for one in _released_exactly(plan, public=dataset.public)]
    elif (registered := ledger.registrations.find(dataset.id)) is None:
        lines = [f"dataset {dataset.id} is not registered: no privacy cost can be given"]
    else:
        used = registered.of_blocks(blocks)
        lines = _cost_lines(plan, dataset, used, ledger, every=every)
        if len(registered.blocks) > 1:
            delta = price_of(plan, **used.sizes).delta
            told = [_of_block(dataset, one, ledger, delta=delta) for one in registered.blocks]
            lines[1:1] = [
                _block_line(one, " is read" if one["block"] in used.numbers else " is not read") for one in told
            ]
    return [*lines, *plan.preparation_lines(), *_settings(plan, every=every)]


def small_cell_lines(plan: Plan, policy: Policy) -> list[str]:
    """What the policy's rule `least_cell` holds back of a plan without privacy."""
    if plan.privacy is not None or policy.least_cell < 2:
        return []
    pairs = (
        "what sums tell of single levels and of pairs may be fewer, by the rule `allow_small_pairs` = true"
        if policy.allow_small_pairs
        else "a plan whose sums would tell fewer of a level or of a pair is refused"
    )
    return [
        f"rule `least_cell` = {policy.least_cell}: a contingency table with a combination of levels of fewer records, "
        "with or without a gap elsewhere, and sums of a regression between such variables, are withheld; which ones "
        "are is told",
        f"rule `least_cell` = {policy.least_cell}: {pairs}",
        *[
            f"rule `least_cell` = {policy.least_cell}: no moments of bent lines (splines) are sent where fewer rows "
            "are beyond a knot, or where rows have gaps, and that they are not is told"
        ]
        * plan.searches_curves,
        *[f"rule `least_cell` = {policy.least_cell}: where rows have gaps, nothing is told of the shape of noise"]
        * plan.looks_at_noise,
        *[
            f"rule `least_cell` = {policy.least_cell}: means are those of the values that are there, and none is told "
            "where a column has fewer values"
        ]
        * plan.tells_means,
    ]


def _released_exactly(plan: Plan, *, public: bool) -> Iterator[str]:
    """What a run without privacy tells of the table, a clause for each kind of release."""
    yield "the weights that it sends are exact functions of the table"
    if not public:
        yield "once it has run, no private run can use this table any more, whatever its budget"
    if plan.preparation is not None:
        used = "have a value, in each column too" if plan.completes else "are complete"
        yield f"it tells how many rows {used}, and the exact variance of every column"
    if any(one.has_levels for one in plan.dictionary.root.values()):
        yield (
            "means and products of columns tell how many rows have each level, and each pair of levels of two "
            "variables, also where it is one row"
        )
    if plan.leaves_out_outlying:
        yield (
            "it tells the median distance of every number's values from their median, and how many of them lie "
            f"{2.0 ** (FIRST_BIN / BINS_AN_OCTAVE):.2g} times the standard deviation that this suggests or more from "
            "it, on which side and by how far"
        )
    if plan.completes:
        yield (
            "if any site lacks a value, it sends for all pairs of columns their mean product and how many rows have "
            "both, how the mean of one differs between rows with and without the other, and how many rows are "
            f"complete; then, in up to {MOST_EM_ROUNDS} rounds, the mean products expected under the covariances of "
            "all sites, and how likely its values are under them"
        )
    yield (
        "it tells which columns have means far from zero, look like categories or row numbers, or hold what looks like "
        "a code of a missing value; whether many records have an equal one; and, where rows of a group count as "
        "independent, how many groups there are"
    )
    if plan.refit_rounds:
        yield (
            "after the ADMM rounds it sends exact least-squares weights along the learned edges, and the variance of "
            "every column that they leave"
        )
    if plan.moments_rounds:
        pairs = "neighbouring variables, of those with a common neighbour, and of those that knowledge keeps apart"
        if plan.moments_rounds > 1:
            pairs = f"all pairs of columns, or, of more than {FEW_COLUMNS} columns, those of {pairs}"
        yield (
            "after the ADMM rounds it sends exact second moments: every variable's mean square, and the mean products "
            f"of {pairs}"
            + ", within a row and between two rows of a group"
            * plan.sends_between_rows
            + "; in the last of these rounds also, of the same pairs, mean products of squared residuals under weights "
            "that the coordinator names" + ", and the exact means of all columns" * plan.tells_means
        )
    if plan.counted:
        yield (
            f"in {counted(plan.counts_rounds, 'round')} it sends exact contingency tables: how many records have each "
            f"combination of levels, of all pairs of variables and of sets of up to {MOST_IN_TABLE}, also where it is "
            "one record"
        )
    if plan.looks_at_noise:
        yield (
            "after the search it sends exact sums over its rows of products of functions of residuals and of a parent, "
            f"along with how many rows these are, for up to {MOST_PAIRS:,} pairs of numbers and other parents that the "
            "coordinator names, which should be those that the graph leaves open"
        )
    if plan.searches_curves:
        yield (
            "after the search it sends exact mean products of all columns and of how far numbers lie above "
            f"{len(KNOTS)} fixed values, also where it is one record, over its rows without a missing value, along "
            "with how many these are"
        )
    if plan.looks_for_curves:
        yield (
            "at the end it sends exact sums over its rows of residuals times steps of other columns, and of squared "
            "residuals times products of two steps, along with how many rows these are"
        )
    if plan.has_ratios:
        yield (
            f"at the end, in up to {plan.regressions_rounds} rounds, it tells how likely its values of binary, "
            "nominal, ordinal and count variables are in regressions on the variables that edges lead from, with "
            "exact gradients and curvatures"
        )
    if plan.sends_scores:
        yield (
            "last it sends exact sums that score the learned network on its rows, of each variable: how likely its "
            "values are under the network, under the site's own fit and by themselves, squared errors, and how many "
            "rows have each level, are within their intervals, or have a predicted probability within some bin, "
            "also where it is one row"
        )


def _cost_lines(
    plan: Plan, dataset: DatasetPolicy, registered: Registration, ledger: Ledger, *, every: bool
) -> list[str]:
    """One epsilon, what it rests on, and with `every` all others.

    All are at the delta of the plan: those of two deltas cannot be compared.
    """
    sizes, payments, blocks = registered.sizes, ledger.payments, registered.numbers
    price, summary = price_of(plan, **sizes), price_summary(plan, **sizes)
    spent = payments.spending(dataset.id, blocks=blocks)
    delta, cost = price.delta, Spending(price.units, price.gaussian)
    after, k = spent + cost, price.sites_per_person
    most_sites = max(k, payments.sites_per_person(dataset.id))
    details = price_lines(summary)

    def whole(cap: Cap, spending: Spending) -> float:
        return cap.left(Spending(), gaussian=spending.gaussian).epsilon(delta)

    whose = (
        ""
        if k == 1
        else f" for somebody with a record at {k} sites, as many as the plan says (privacy.sites_per_person)"
    )
    (room, _), (then, n_more) = (_room(price, dataset, ledger, blocks, runs=runs) for runs in (0, 1))
    rest = (
        f"room for one more such run of epsilon {then.epsilon(delta):.4g}, or for {n_more:,} like this one, is left"
        if room.units >= price.person_units
        else f"policy and ledger have room for such a run of epsilon {room.epsilon(delta):.4g} at most"
    )
    other_delta = f"; the policy has epsilon {dataset.max_epsilon:g} at delta {dataset.max_delta:.3g}"
    t = plan.n_participants - price.n_honest
    rests_on = [f"nobody has a record at {'two' if k == 1 else k + 1} sites (privacy.sites_per_person = {k})"]
    if price.n_honest > 1:
        rests_on.append(
            f"at most {t} of the other sites collude{'s' * (t == 1)} with the coordinator, counting those that are not "
            "confirmed here (participant peers) and those that are lost during the run"
        )
    lines = [
        f"This run costs epsilon {epsilon_at(price, k):.4g} at delta {delta:.3g} against "
        f"{adversary(price, plan.n_participants)}{whose}; {rest}.",
        f"That holds if {' and '.join(rests_on)}" + ("." if every else "; --all says what is lost otherwise."),
    ]
    if cost.gaussian and not spent.gaussian:
        lines.append(
            "Earlier runs of the table were not all priced by Gaussian DP: this run is counted with them, by zCDP."
        )
    if not every:
        return [*lines, *(details[:1] if not summary["guarantee"] else [])]
    lines.append(
        f"Dataset {dataset.id}, for a record at this delta: budget epsilon {whole(dataset.cap, after):.4g}"
        f"{other_delta * (delta != dataset.max_delta)}; spent so far epsilon {spent.epsilon(delta):.4g}, with this run "
        f"({counted(n_rounds(plan), 'round')}) {after.epsilon(delta):.4g}. Epsilons do not add up."
    )
    if most_sites > 1:
        before = payments.spending(dataset.id, at_sites=most_sites, blocks=blocks)
        in_all = before + Spending(price.units_at(most_sites), price.gaussian)
        lines.append(
            f"For somebody with a record at {most_sites} sites: budget epsilon "
            f"{whole(dataset.cap_per_person, in_all):.4g} (max_epsilon_per_person); spent so far at most epsilon "
            f"{before.epsilon(delta):.4g}, with this run {in_all.epsilon(delta):.4g}."
        )
    lines.append(
        (f"A record here alone loses epsilon {cost.epsilon(delta):.4g} at the same delta. " if k > 1 else "")
        + f"Whoever has a record at {k + 1} sites loses epsilon {epsilon_at(price, k + 1):.4g}."
    )
    if price.n_honest > 1:
        in_all, most = Spending(price.share_units, price.gaussian), dataset.cap_against_all
        allowed = "which the policy has no rule for"
        if most is not None:
            allowed = f"of at most {whole(most, in_all):.4g} in all"
        here, person = "", ""
        if k > 1:
            here = " for a record here"
            of_person = Spending(k * price.share_units, price.gaussian).epsilon(delta)
            person = f"; {of_person:.4g} for somebody with a record at {k} sites, if all but these collude"
        lines.append(
            f"It holds against a coordinator that pretends as many losses as the plan allows, {price.retries}, "
            f"together with {t - price.retries} others. If it and all other sites collude, the run spends epsilon "
            f"{in_all.epsilon(delta):.4g}{here} at the same delta, {allowed}{person}."
        )
    return [*lines, "the privacy cost in detail:", *(f"  {line}" for line in details)]


def _room(
    price: Price, dataset: DatasetPolicy, ledger: Ledger, blocks: Sequence[int], *, runs: int = 0
) -> tuple[Spending, int]:
    """The largest run like that of a price which all rules of the policy leave room for, after so many such runs.

    It is what somebody at as many sites as the plan says would lose, like the epsilon that a plan asks for. Also how
    many runs of this very price there is room for.
    """
    of = partial(ledger.payments.spending, dataset.id, blocks=blocks)
    k = max(price.sites_per_person, ledger.payments.sites_per_person(dataset.id))
    rules = [(dataset.cap, price.units, of()), (dataset.cap_per_person, price.units_at(k), of(at_sites=k))]
    if price.n_honest > 1 and dataset.cap_against_all is not None:
        rules.append((dataset.cap_against_all, price.share_units, of(against_all=True)))
    left = [
        (cap.left(spent + Spending(runs * cost, price.gaussian), gaussian=price.gaussian), cost)
        for cap, cost, spent in rules
    ]
    share = min(Fraction(one.units, cost) for one, cost in left)
    of_run = Fraction(dataset.run_cap.left(Spending(), gaussian=price.gaussian).units, price.units)
    largest = Spending(int(min(share, of_run) * price.person_units), all(one.gaussian for one, _ in left))
    return largest, int(share)


def _settings(plan: Plan, *, every: bool) -> list[str]:
    """The settings, those that differ from the defaults first."""
    settings = list(shown_settings(plan, {}))
    shown = [f"  {one.name} = {json.dumps(one.value, ensure_ascii=False)}" for one in settings if one.differs]
    if not every:
        detail = "the privacy cost in detail and " if plan.privacy is not None else ""
        return [f"the plan {plan.name!r}: --all shows {detail}every setting"]
    lines = [f"the plan {plan.name!r}, where it differs from the defaults:", *shown]
    rest = [f"  {one.name} = {json.dumps(one.value, ensure_ascii=False)}" for one in settings if not one.differs]
    return [*lines, "the other settings, which are the defaults:", *rest]


def block_lines(dataset: DatasetPolicy, ledger: Ledger) -> list[str]:
    """What each block of a dataset that has grown has spent and has left, as text."""
    registered = ledger.registrations.find(dataset.id)
    blocks = () if registered is None or len(registered.blocks) < 2 else registered.blocks
    return [f"dataset {dataset.id}: {_block_line(_of_block(dataset, one, ledger))}" for one in blocks]


def _block_line(told: Mapping[str, Any], what: str = "") -> str:
    spent, left = (f"{told[name]['epsilon']:.4g}" for name in ("spent", "left"))
    lost = "; NO GUARANTEE: it was used in a run without privacy" if told["unprotected"] else ""
    return (
        f"block {told['block']} ({counted(told['n_samples'], 'record')}, since {told['since'][:10]}){what}: spent "
        f"epsilon {spent} at delta {told['delta']:.3g}, under max_epsilon room for one more run of up to {left}{lost}"
    )


def refuse_blocks(plan: Plan, whole: Registration, used: Registration) -> None:
    """Raise PolicyRefusal if a run without privacy is to read some blocks: it tells what the whole table looks like."""
    if plan.privacy is None and used.numbers != whole.numbers:
        raise PolicyRefusal(
            "a run without privacy reads the whole table: blocks have budgets, which it does not keep",
            remedy="Leave --blocks out, or agree on a private plan.",
        )


def refuse_what_cannot_run(
    plan: Plan, policy: Policy, dataset: DatasetPolicy, ledger: Ledger, folder: Path, *, blocks: Sequence[int] = ()
) -> Registration:
    """Refuse to record an approval for a plan that policy or budget of the site's folder would refuse.

    Returns what a run would read, as it is registered. Raises PolicyRefusal or BudgetExhaustedError as on joining a
    run; if only some blocks cannot pay, it names those that can.
    """
    ledger.require_open()
    whole = ledger.registrations.find(dataset.id)
    if whole is None:
        raise not_registered(folder, dataset.id)
    used = whole.of_blocks(blocks)
    refuse_blocks(plan, whole, used)
    try:
        _refuse_what_cannot_run(plan, policy, dataset, ledger, used)
    except (BudgetExhaustedError, PolicyRefusal) as error:
        if plan.privacy is None:
            raise
        able = [one.number for one in whole.blocks if _can_run(plan, policy, dataset, ledger, whole, (one.number,))]
        if not able or not _can_run(plan, policy, dataset, ledger, whole, able):
            raise
        named = ",".join(map(str, able))
        raise type(error)(
            f"{error}; over block{'s' * (len(able) > 1)} {named} alone, "
            f"{counted(whole.of_blocks(able).n_samples, 'record')}, the run would be allowed",
            remedy=f"To approve it, and to join: --blocks {named}.",
        ) from None
    return used


def _can_run(
    plan: Plan, policy: Policy, dataset: DatasetPolicy, ledger: Ledger, whole: Registration, blocks: Sequence[int]
) -> bool:
    try:
        _refuse_what_cannot_run(plan, policy, dataset, ledger, whole.of_blocks(blocks))
    except (BudgetExhaustedError, PolicyRefusal):
        return False
    return True


def _refuse_what_cannot_run(
    plan: Plan, policy: Policy, dataset: DatasetPolicy, ledger: Ledger, registered: Registration
) -> None:
    policy.check_plan(plan, dataset, n_samples=registered.n_samples, approved=True)
    if plan.privacy is not None:
        payments, blocks = ledger.payments, registered.numbers
        payments.require_protected(dataset.id, blocks=blocks)
        price = price_of(plan, **registered.sizes)
        cost, in_all = (Spending(units, price.gaussian) for units in (price.units, price.share_units))
        spent, spent_in_all = (
            payments.spending(dataset.id, against_all=of_all, blocks=blocks) for of_all in (False, True)
        )
        check_cost(dataset, price, to_pay=cost, spent=spent, spent_in_run=Spending())
        check_cost_against_all(dataset, price, to_pay=in_all, spent=spent_in_all)
        k = max(price.sites_per_person, payments.sites_per_person(dataset.id))
        spent_at_sites = payments.spending(dataset.id, at_sites=k, blocks=blocks)
        at_sites = Spending(price.units_at(k), price.gaussian)
        check_cost_per_person(dataset, price, k, to_pay=at_sites, spent=spent_at_sites)


def ledger_as_json(policy: Policy, ledger: Ledger) -> dict[str, Any]:
    """Spending by dataset, approvals that hold, runs, and all entries."""
    entries = ledger.entries()
    return {
        "ledger": ledger.ledger_id.hex(),
        "head": ledger.mark.link,
        "entries": [
            {"number": entry.number, "time": entry.time.isoformat(), "kind": entry.kind, **entry.content}
            for entry in entries
        ],
        "runs": [asdict(run) for run in known_runs(entries).values()],
        "approvals": [
            {"digest": one.digest, "name": one.name, "authority": one.authority}
            | ({} if one.terms is None else {"agent_runs_left": one.runs_left})
            for one in _approvals(ledger)
        ],
        "datasets": [spending(dataset, ledger) for dataset in policy.datasets],
    }


def _approvals(ledger: Ledger) -> list[Approval]:
    """Those that hold, the oldest first."""
    return sorted((one for of in ledger.approvals.current().values() for one in of), key=lambda one: one.number)


def ledger_lines(policy: Policy, ledger: Ledger, federations: Mapping[str, str] = _NO_NAMES) -> list[str]:
    """Spending by dataset, approvals that hold, and all entries, as text; names of federations by authority."""
    since = ledger.sealed_since
    lines = [f"SEALED on {since[:10]}: this site left for good, and no run is paid from it"] * bool(since)
    for dataset in policy.datasets:
        of = spending(dataset, ledger)
        other = f"{of['left_if_not_gaussian']['epsilon']:.4g}"
        lines.append(
            f"dataset {dataset.id}: spent epsilon {of['spent']['epsilon']:.4g} of {dataset.max_epsilon:g} at delta "
            f"{dataset.max_delta:g} ({of['spent']['zcdp']:.6g} zCDP); under max_epsilon room for one more run of up "
            f"to epsilon {of['left']['epsilon']:.4g} ({of['left']['zcdp']:.6g} zCDP)"
            + ("" if other == f"{of['left']['epsilon']:.4g}" else f", or {other} if it is not priced by Gaussian DP")
        )
        if of["spent"]["zcdp"]:
            at = ", ".join(f"{one['epsilon']:.4g} at {k}" for k, one in of["spent_at_sites"].items())
            line = (
                f"dataset {dataset.id}: somebody with a record at several sites that have spent as much has lost at "
                f"most, at the same delta, epsilon {at} sites"
            )
            if "left_per_person" in of:
                line += (
                    f"; of {dataset.max_epsilon_per_person or dataset.max_epsilon:g} at {of['sites_per_person']} "
                    "sites, as many as plans said (max_epsilon_per_person), which leaves room for one more run of up "
                    f"to epsilon {of['left_per_person']['epsilon']:.4g} for this person"
                )
            lines.append(line)
        if "spent_against_all" in of:
            line = (
                f"dataset {dataset.id}: that is against the coordinator and as many other sites as each plan said "
                "may collude; if it and all other sites collude: spent epsilon "
                f"{of['spent_against_all']['epsilon']:.4g} at the same delta ({of['spent_against_all']['zcdp']:.6g} "
                "zCDP)"
            )
            if "left_against_all" in of:
                line += (
                    f", of {dataset.max_epsilon_against_all:g} (max_epsilon_against_all), with room for one more run "
                    f"of up to {of['left_against_all']['epsilon']:.4g}"
                )
            lines.append(line)
        if of["one_budget_with"]:
            lines.append(f"dataset {dataset.id}: one budget with {', '.join(of['one_budget_with'])}, counted together")
        lines += block_lines(dataset, ledger)
        if of["unprotected"]:
            lines.append(f"dataset {dataset.id}: NO GUARANTEE: it was used in a run without privacy")
    entries = ledger.entries()
    if any(entry.kind == "reserve" for entry in entries):
        lines.append(
            "a run fits in if it keeps to every rule; `participant approve` says of a plan how large. It is charged by "
            "round: rounds that were included for a lost site, and not asked again, are not spent"
        )
    for one in _approvals(ledger):
        agents = "no run of an agent" if one.terms is None else f"{one.runs_left} more run(s) of an agent"
        lines.append(
            f"approved: plan {one.name!r}, digest {one.digest[:16]}...{_federation(one.authority, federations)}, for "
            f"{agents}"
        )
    lines.append(f"{len(entries)} entries:")
    runs = {number: str(run) for number, run in known_runs(entries).items()}
    by_blocks = any(entry.content.get("made", 1) > 1 for entry in entries)
    lines += [
        f"  {e.number:5} {e.time:%Y-%m-%d %H:%M:%S} {e.kind:8} {_details(e, federations, runs, by_blocks=by_blocks)}"
        for e in entries
    ]
    return lines


def _federation(authority: str, names: Mapping[str, str]) -> str:
    return f", federation {names.get(authority, authority)}" if authority else ""


def _details(entry: Entry, federations: Mapping[str, str], runs: Mapping[str, str], *, by_blocks: bool) -> str:
    what = entry.content
    if entry.kind == "register":
        sizes = [f"block {number} {rows:,}" for number, rows in what.get("blocks", ()) if rows]
        parts = f" ({', '.join(sizes)})" if len(sizes) > 1 else ""
        how = (
            "; it has grown" if what.get("fresh") else "; in place of the one before" if what.get("made", 1) > 1 else ""
        )
        return f"{what['dataset']}, {what['n_samples']} rows{parts}, {len(what['variables'])} variables{how}"
    if entry.kind == "approve":
        terms = what.get("terms")
        agents = "" if terms is None else f", for {terms['runs']} run(s) of an agent"
        of = _federation(authority_in(what), federations)
        return f"plan {what['name']!r}, digest {what['digest'][:16]}...{of}{agents}"
    if entry.kind == "withdraw":
        of = _federation(what.get("authority", ""), federations)
        return f"the approval of digest {what['digest'][:16]}...{of} was taken back"
    if entry.kind == "agent":
        return f"the agent takes part in {runs[what['run']]}{_federation(what.get('authority', ''), federations)}"
    if entry.kind == "unprotected":
        return f"{what['dataset']}, {runs.get(what['run'], 'run unknown')}: used without privacy"
    if entry.kind == "restored":
        if what["entries"] is None:
            return (
                "a backup was accepted, without a note of the lost ledger: its datasets may have spent all they might"
            )
        return f"an older copy was accepted; the lost ledger had at least {what['entries']} entries"
    if entry.kind == "seal":
        return "the site left for good: nothing is entered any more"
    if entry.kind == "lost":
        return f"{what['dataset']}: {zcdp.zcdp_of(what['units']):.6g} zCDP, spent by entries that are lost"
    answer = f"{what['dataset']}, {runs[what['run']]}, round {what['round']}"
    if by_blocks and (blocks := ", ".join(map(str, what.get("blocks", ())))):
        answer += f", block {blocks}"
    return f"{answer}: {zcdp.zcdp_of(what['units']):.6g} zCDP" if entry.kind == "reserve" else f"{answer}: answer kept"
