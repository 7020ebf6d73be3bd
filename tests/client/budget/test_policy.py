"""A site's policy: what is not allowed is refused, by rule and value."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedbnsl.errors import BudgetExhaustedError, PolicyRefusal, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import Price, price_of
from fedbnsl.privacy.zcdp import epsilon_of
from fedbnsl_client.budget.policy import DatasetPolicy, Policy, check_cost
from fedbnsl_client.budget.spending import Spending
from private_site import private_plan

TABLE: dict[str, Any] = {
    "id": "ward-7", "path": "ward.csv", "max_epsilon": 5.0, "max_delta": 1e-6, "max_epsilon_per_run": 2.0
}  # fmt: skip
OPEN: dict[str, Any] = {
    "site": "north",
    "coordinators": ("hub.example",),
    "allowed_solvers": ("dp-pgcd", "pgcd"),
    "auto_approve": True,
    "datasets": (TABLE,),
}
UNITS = 10**12


def policy(**settings: Any) -> Policy:
    return Policy.model_validate({**OPEN, **settings})


def refusal(policy: Policy, plan: Plan, *, n_samples: int = 100, approved: bool = False) -> str:
    with pytest.raises(PolicyRefusal) as caught:
        policy.check_plan(plan, policy.datasets[0], n_samples=n_samples, approved=approved)
    return str(caught.value)


def allow(policy: Policy, plan: Plan, *, n_samples: int = 100, approved: bool = False) -> None:
    policy.check_plan(plan, policy.datasets[0], n_samples=n_samples, approved=approved)


def test_with_a_least_cell_a_plan_without_privacy_needs_a_data_dictionary() -> None:
    exact = policy(allow_non_private=True, min_participants=0, least_cell=5)
    assert "rule `least_cell` = 5: the plan has neither [privacy] nor a data dictionary" in refusal(exact, Plan())
    allow(policy(allow_non_private=True, min_participants=0, least_cell=5, allow_small_pairs=True), Plan())
    allow(policy(allow_non_private=True, min_participants=0), Plan())
    allow(policy(least_cell=5), private_plan())


# ---- deny by default -----------------------------------------------------------------------------------------------


def test_an_empty_policy_refuses_every_coordinator_every_dataset_and_every_plan() -> None:
    empty = Policy.parse('site = "north"\n', origin="policy.toml")
    with pytest.raises(PolicyRefusal, match=r"rule `coordinators`: 127.0.0.1:50051 is not among them \(none\)"):
        empty.check_coordinator("127.0.0.1:50051", authority="")
    for asked in (None, "ward-7"):
        with pytest.raises(PolicyRefusal, match=r"rule `datasets`.*the policy has: none"):
            empty.dataset(asked)
    dataset = DatasetPolicy.model_validate(TABLE)
    for plan in (private_plan(), Plan(), Plan(local_solver="closed-form")):
        with pytest.raises(PolicyRefusal):
            empty.check_plan(plan, dataset, n_samples=10**6, approved=True)


def test_a_policy_that_names_a_dataset_and_nothing_else_still_refuses_a_private_plan() -> None:
    bare = Policy.model_validate({"site": "north", "datasets": (TABLE,)})
    assert "`allowed_solvers` = []" in refusal(bare, private_plan(), approved=True)
    named = Policy.model_validate({"site": "north", "datasets": (TABLE,), "allowed_solvers": ("dp-pgcd",)})
    with pytest.raises(PolicyRefusal, match="is not approved") as caught:
        allow(named, private_plan())
    assert "Approve the very plan that the coordinator serves" in caught.value.remedy
    assert "another plan" not in caught.value.remedy, "one remedy, not two that contradict each other"
    allow(named, private_plan(), approved=True)


# ---- one rule each -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "plan", "rows", "said"),
    [
        ({"min_participants": 3}, private_plan(), 100, "`min_participants` = 3: the plan has n_participants = 2"),
        ({}, private_plan(n_participants=1), 100, "`min_participants` = 2: the plan has n_participants = 1"),
        (
            {"min_honest": 7},
            Plan.load("private-moments", ["privacy.secure_aggregation=true", "privacy.delta=1e-6"]),
            100,
            "`min_honest` = 7: the plan has n_participants = 8, of which 2 may collude or be said to be lost "
            "(privacy.colluding), so that 6 must be honest",
        ),
        (
            {},
            Plan.load(
                "private-moments",
                ["privacy.secure_aggregation=true", "privacy.delta=1e-6", "privacy.secure_aggregation_retries=2"],
            ),
            100,
            "`max_retries` = 1: the plan has privacy.secure_aggregation_retries = 2",
        ),
        ({"min_rows": 101}, private_plan(), 100, "`min_rows` = 101: the table has 100 rows"),
        ({}, private_plan(), 99, "`min_rows` = 100: the table has 99 rows"),
        (
            {"allowed_solvers": ("dp-pgcd-laplace",)},
            private_plan(),
            100,
            "`allowed_solvers` = ['dp-pgcd-laplace']: the plan has local_solver = 'dp-pgcd'",
        ),
        ({}, Plan(), 100, "`allow_non_private` = false: the plan has no [privacy], and dataset 'ward-7' is not public"),
        (
            {"allow_non_private": True},
            private_plan(privacy={"smoothness": "exact"}),
            100,
            "`public` = false for dataset 'ward-7': the plan has smoothness = 'exact', which is not charged",
        ),
        ({"auto_approve": False}, private_plan(), 100, "`auto_approve`: the plan "),
        ({"auto_approve": ("0" * 64,)}, private_plan(), 100, "is not approved"),
    ],
)
def test_each_rule_refuses_by_its_name_and_value(settings: Any, plan: Plan, rows: int, said: str) -> None:
    text = refusal(policy(**settings), plan, n_samples=rows)
    assert text.startswith("rule `")
    assert said in text


def test_every_rule_allows_what_it_is_there_for() -> None:
    allow(policy(min_participants=2, min_rows=100), private_plan())
    allow(policy(allow_non_private=True), Plan())
    allow(policy(allow_non_private=True, min_honest=4, max_retries=0), Plan(n_participants=3))
    allow(policy(min_honest=4, max_retries=0), private_plan())
    summed = Plan.load("private-moments", ["privacy.secure_aggregation=true", "privacy.delta=1e-6"])
    allow(policy(min_honest=6, max_retries=1), summed)


@pytest.mark.parametrize("plan", [Plan(), private_plan(privacy={"smoothness": "exact"})])
def test_a_public_table_may_be_used_without_privacy_and_with_exact_moments(plan: Plan) -> None:
    allow(policy(datasets=({**TABLE, "public": True},)), plan)
    refusal(policy(), plan)


def test_a_plan_is_approved_by_the_ledger_by_a_listed_digest_or_wholesale() -> None:
    plan = private_plan()
    other = private_plan(rounds=4)
    listed = policy(auto_approve=(plan.digest().hex(),))
    allow(listed, plan)
    allow(listed, plan.with_settings(variables=("a", "b"), sites=("north", "south")))
    assert other.digest().hex()[:16] in refusal(listed, other)
    allow(policy(auto_approve=False), plan, approved=True)
    refusal(policy(auto_approve=False), plan)
    allow(policy(auto_approve=True), other)


@pytest.mark.parametrize("named", ["http://hub", "hub:99999999", "", "a b", "hub:50051:1x"])
def test_a_coordinator_that_could_never_match_is_refused(named: str) -> None:
    with pytest.raises(ValidationError, match="is neither a host nor host:port"):
        policy(coordinators=(named,))


@pytest.mark.parametrize("named", ["hub.example.org", "hub:50051", "10.0.0.1:7", "[::1]:50051", "::1", "länge.example"])
def test_a_coordinator_is_a_host_or_host_and_port(named: str) -> None:
    policy(coordinators=(named,)).check_coordinator(named, authority="")


def test_a_named_authority_must_vouch_for_the_coordinator() -> None:
    named = policy(coordinators=("hub.example",), coordinator_ca="AB:cd:01")
    named.check_coordinator("hub.example:7000", authority="sha256:abCD01")
    for other in ("AB:CD:02", ""):
        with pytest.raises(PolicyRefusal, match="rule `coordinator_ca` = AB:cd:01"):
            named.check_coordinator("hub.example:7000", authority=other)


@pytest.mark.parametrize("named", ["hub.example", "hub.example:7000"])
def test_a_coordinator_is_allowed_by_host_or_by_host_and_port(named: str) -> None:
    policy(coordinators=(named,)).check_coordinator("hub.example:7000", authority="")
    for stranger in ("hub.example.evil.org:7000", "evil.org:7000", "127.0.0.1:7000"):
        with pytest.raises(PolicyRefusal, match=f"rule `coordinators`: {stranger} is not among them"):
            policy(coordinators=(named,)).check_coordinator(stranger, authority="")
    if named.endswith("7000"):
        with pytest.raises(PolicyRefusal):
            policy(coordinators=(named,)).check_coordinator("hub.example:7001", authority="")


def test_of_two_datasets_one_must_be_named() -> None:
    two = policy(datasets=(TABLE, {**TABLE, "id": "ward-8", "path": "other.csv"}))
    assert two.dataset("ward-8").id == "ward-8"
    with pytest.raises(PolicyRefusal, match="no dataset was named; the policy has: ward-7, ward-8"):
        two.dataset(None)
    with pytest.raises(PolicyRefusal, match="dataset 'ward-9'; the policy has: ward-7, ward-8"):
        two.dataset("ward-9")


# ---- budget --------------------------------------------------------------------------------------------------------


def one_step(epsilon: float, **privacy: Any) -> Price:
    """A run that is counted by zCDP: of one step, whose plan asks epsilon at delta 1e-6."""
    plan = private_plan(rounds=1, local_steps=1, privacy={"epsilon": epsilon, **privacy})
    return price_of(plan, n_samples=100, n_variables=3)


def cost(epsilon: float) -> int:
    """Units of such a run."""
    return one_step(epsilon).units


def check(dataset: DatasetPolicy, epsilon: float, *, spent: int = 0, spent_in_run: int = 0, **privacy: Any) -> None:
    price = one_step(epsilon, **privacy)
    check_units(dataset, price, price.units, spent=spent, spent_in_run=spent_in_run)


def check_units(dataset: DatasetPolicy, price: Price, units: int, *, spent: int, spent_in_run: int) -> None:
    """Of runs that are counted by zCDP."""
    to_pay, before, in_run = (Spending(number, gaussian=False) for number in (units, spent, spent_in_run))
    check_cost(dataset, price, to_pay=to_pay, spent=before, spent_in_run=in_run)


DATA = DatasetPolicy.model_validate(TABLE)


def test_a_run_may_cost_exactly_what_the_policy_allows_a_run() -> None:
    check(DATA, 2.0)
    with pytest.raises(PolicyRefusal, match=r"rule `max_epsilon_per_run` = 2: the run costs epsilon 2\.1 "):
        check(DATA, 2.1)


def test_a_plan_with_a_larger_delta_is_refused_and_one_with_a_smaller_is_not() -> None:
    with pytest.raises(PolicyRefusal, match="rule `max_delta` = 1e-06: the plan has delta = 2e-06"):
        check(DATA, 0.1, delta=2e-6)
    check(DATA, 0.1, delta=1e-9)


def test_the_delta_of_a_small_site_counts_too() -> None:
    with pytest.raises(PolicyRefusal, match=r"`max_delta` = 1e-06: the plan has delta = 0\.0001"):
        check(DATA, 0.1, delta=0.0)  # 1 / rows^2


def test_a_run_over_the_cap_is_refused_with_all_the_numbers() -> None:
    spent = cost(4.9)
    with pytest.raises(BudgetExhaustedError) as caught:
        check(DATA, 2.0, spent=spent)
    text = str(caught.value)
    together = epsilon_of((spent + cost(2.0)) / UNITS, 1e-6)
    for part in (
        "'ward-7'",
        "costs epsilon 2 ",
        "spent so far epsilon 4.9 ",
        f"together epsilon {together:.4g}",
        "`max_epsilon` = 5",
    ):
        assert part in text, text


def test_the_last_unit_of_a_budget_can_be_spent_and_not_one_more() -> None:
    price = one_step(1.0)
    left = DATA.cap.units - price.units
    check_units(DATA, price, price.units, spent=left, spent_in_run=0)
    with pytest.raises(BudgetExhaustedError):
        check_units(DATA, price, price.units, spent=left + 1, spent_in_run=0)


def test_after_a_restart_what_the_run_has_spent_counts_towards_its_own_limit() -> None:
    price = one_step(2.0)
    half = price.units // 2
    check_units(DATA, price, price.units - half, spent=half, spent_in_run=half)
    with pytest.raises(PolicyRefusal, match="max_epsilon_per_run"):
        check_units(DATA, price, price.units, spent=half, spent_in_run=half)


def test_caps_are_never_worth_more_than_the_epsilon_they_stand_for() -> None:
    assert epsilon_of(DATA.cap.units / UNITS, 1e-6) <= 5.0 < epsilon_of((DATA.cap.units + 1000) / UNITS, 1e-6)
    assert epsilon_of(DATA.run_cap.units / UNITS, 1e-6) <= 2.0


# ---- where all runs are counted by Gaussian DP ---------------------------------------------------------------------


def gaussian_plan(epsilon: float) -> Price:
    plan = private_plan(rounds=0, moments_rounds=2, privacy={"epsilon": epsilon})
    return price_of(plan, n_samples=100, n_variables=3)


def test_caps_of_gaussian_releases_are_worth_the_same_epsilon() -> None:
    for cap, epsilon in ((DATA.cap, 5.0), (DATA.run_cap, 2.0)):
        assert cap.gaussian_units > cap.units
        spent = Spending(cap.gaussian_units)
        assert epsilon * (1 - 1e-6) < spent.epsilon(1e-6) <= epsilon
        assert Spending(cap.gaussian_units, gaussian=False).epsilon(1e-6) > epsilon * 1.02


def test_a_gaussian_run_of_exactly_the_epsilon_of_the_policy_is_allowed() -> None:
    price = gaussian_plan(2.0)
    cost = Spending(price.units, price.gaussian)
    check_cost(DATA, price, to_pay=cost, spent=Spending(), spent_in_run=Spending())
    more = gaussian_plan(2.1)
    with pytest.raises(PolicyRefusal, match=r"`max_epsilon_per_run` = 2: the run costs epsilon 2\.1 "):
        check_cost(DATA, more, to_pay=Spending(more.units), spent=Spending(), spent_in_run=Spending())
    before = Spending(1, gaussian=False)
    with pytest.raises(PolicyRefusal, match=r"max_epsilon_per_run"):
        check_cost(DATA, price, to_pay=Spending(price.units - 1), spent=Spending(), spent_in_run=before)


def test_a_budget_holds_more_if_all_of_it_is_gaussian() -> None:
    price = gaussian_plan(2.0)
    cost = Spending(price.units)
    left = DATA.cap.left(cost, gaussian=True)
    check_cost(DATA, price, to_pay=cost, spent=left, spent_in_run=Spending())
    with pytest.raises(BudgetExhaustedError) as caught:
        check_cost(DATA, price, to_pay=cost, spent=left + Spending(1), spent_in_run=Spending())
    assert "Gaussian" not in str(caught.value), "that is not why"
    with pytest.raises(BudgetExhaustedError, match="only where all runs of a table are priced by Gaussian DP"):
        check_cost(DATA, price, to_pay=cost, spent=Spending(left.units, gaussian=False), spent_in_run=Spending())


def test_many_private_steps_follow_gaussian_releases_like_any_other_run() -> None:
    price = price_of(private_plan(privacy={"epsilon": 2.0}), n_samples=100, n_variables=3)
    cost = Spending(price.units, price.gaussian)
    before = DATA.cap.left(cost, gaussian=True)
    check_cost(DATA, price, to_pay=cost, spent=before, spent_in_run=Spending())
    with pytest.raises(BudgetExhaustedError):
        check_cost(DATA, price, to_pay=cost, spent=before + Spending(1), spent_in_run=Spending())


def test_what_counts_by_zcdp_follows_gaussian_runs_only_where_all_counts_so_from_the_start() -> None:
    price = one_step(1.0)
    assert not price.gaussian
    to_pay = Spending(price.units, gaussian=False)
    with pytest.raises(PolicyRefusal, match="`mixed_releases` = false"):
        check_cost(DATA, price, to_pay=to_pay, spent=Spending(1), spent_in_run=Spending())
    check_cost(DATA, price, to_pay=to_pay, spent=Spending(1, gaussian=False), spent_in_run=Spending())
    mixed = DatasetPolicy.model_validate({**DATA.model_dump(), "mixed_releases": True})
    assert mixed.cap.gaussian_units == mixed.cap.units == DATA.cap.units
    before = Spending(DATA.cap.units - price.units)
    check_cost(mixed, price, to_pay=to_pay, spent=before, spent_in_run=Spending())
    with pytest.raises(BudgetExhaustedError):
        check_cost(mixed, price, to_pay=to_pay, spent=before + Spending(1), spent_in_run=Spending())
    gaussian = gaussian_plan(2.0)
    cost = Spending(gaussian.units)
    with pytest.raises(PolicyRefusal, match="max_epsilon_per_run"):
        check_cost(mixed, gaussian, to_pay=cost, spent=Spending(), spent_in_run=Spending())


def test_what_is_left_is_told_for_either_kind() -> None:
    cap = DATA.cap
    assert cap.left(Spending(), gaussian=True) == Spending(cap.gaussian_units)
    assert cap.left(Spending(), gaussian=False) == Spending(cap.units, gaussian=False)
    assert cap.left(Spending(5, gaussian=False), gaussian=True) == Spending(cap.units - 5, gaussian=False)
    assert cap.left(Spending(cap.units + 5), gaussian=False) == Spending(0, gaussian=False)


# ---- the file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'site = "north"\nallow_nonprivate = true\n',
            "allow_nonprivate: no such rule; did you mean allow_non_private?",
        ),
        ('site = "north"\nmin_rows = true\n', "min_rows = True"),
        ('site = "north"\nmin_rows = -1\n', "min_rows = -1"),
        ('site = "north"\nallow_non_private = 1\n', "allow_non_private = 1"),
        ('site = "north"\nauto_approve = "yes"\n', "auto_approve"),
        ('site = "../x"\n', "site = '../x'"),
        ("min_rows = 3\n", "site"),
        ("site = north\n", "is not valid TOML"),
        ("x = " + "[" * 5_000 + "]" * 5_000, "is not valid TOML: it is nested too deeply"),
        ('site = "n"\n[[datasets]]\nid = "a"\npath = "a.csv"\n', "dataset 1: max_epsilon is missing"),
        (
            'site = "n"\n[[datasets]]\nid = "a"\npath = "a.csv"\n'
            "max_epsilon = inf\nmax_delta=1e-6\nmax_epsilon_per_run=1\n",
            "dataset 1: max_epsilon = inf",
        ),
        (
            'site = "n"\n[[datasets]]\nid = "a"\npath = "a.csv"\n'
            "max_epsilon = nan\nmax_delta=1e-6\nmax_epsilon_per_run=1\n",
            "dataset 1: max_epsilon = nan",
        ),
        (
            'site = "n"\n[[datasets]]\nid = "a"\npath = "a.csv"\n'
            "max_epsilon = 1.0\nmax_delta=0.5\nmax_epsilon_per_run=1.0\n",
            "dataset 1: max_delta = 0.5",
        ),
    ],
)
def test_a_policy_that_is_edited_wrongly_is_refused_as_a_whole(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SetupError) as caught:
        Policy.load(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "other", ["./x.csv", "./../site/x.csv", "{folder}/x.csv", "link.csv", "hard.csv", "{up}/x.csv"]
)
def test_two_datasets_with_one_file_are_refused_since_one_table_has_one_budget(other: str, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "x.csv").write_text("a,b\n", encoding="utf-8")
    (folder / "link.csv").symlink_to("x.csv")
    (folder / "hard.csv").hardlink_to(folder / "x.csv")
    (tmp_path / "up").symlink_to("site")
    table = 'path = "{}"\nmax_epsilon = 1.0\nmax_delta = 1e-6\nmax_epsilon_per_run = 1.0\n'
    paths = ("x.csv", other.format(folder=folder, up=tmp_path / "up"))
    entries = [f'[[datasets]]\nid = "{name}"\n' + table.format(path) for name, path in zip("ab", paths, strict=True)]
    (folder / "policy.toml").write_text('site = "n"\n' + "".join(entries), encoding="utf-8")
    with pytest.raises(SetupError, match="'a' and 'b' are the same file; one table has one id"):
        Policy.load(folder / "policy.toml")


def test_an_approval_in_the_policy_is_a_whole_digest_and_a_solver_one_that_there_is() -> None:
    for text, said in (
        ('auto_approve = ["48186961fc125cbe"]', "64 hexadecimal digits"),
        ('allowed_solvers = ["dp-pgdc"]', "dp-pgdc"),
    ):
        with pytest.raises(SetupError, match=said) as caught:
            Policy.parse(f'site = "n"\n{text}\n', origin="here")
        assert "policy.toml" in caught.value.remedy


def test_two_datasets_with_one_id_are_refused_since_one_budget_belongs_to_one_id() -> None:
    dataset = '[[datasets]]\nid = "a"\npath = "a.csv"\nmax_epsilon = 1.0\nmax_delta = 1e-6\nmax_epsilon_per_run = 1.0\n'
    with pytest.raises(SetupError, match="two have the same id"):
        Policy.parse('site = "n"\n' + dataset + dataset, origin="policy.toml")


def test_a_policy_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"policy .*policy.toml cannot be read"):
        Policy.load(tmp_path / "policy.toml")
