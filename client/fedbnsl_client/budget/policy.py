"""The site's rules, from its policy.toml. What they do not allow is refused; no message can change them."""

import difflib
import itertools
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbnsl.errors import BudgetExhaustedError, NotApprovedError, PolicyRefusal, SetupError
from fedbnsl.files.toml_text import in_toml_words, parse_toml
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.settings import Solver
from fedbnsl.privacy import zcdp
from fedbnsl.privacy.calibration import Price
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name
from fedbnsl_client.budget import registrations
from fedbnsl_client.budget.spending import Cap, Spending
from fedbnsl_client.data.fingerprint import file_identity

Count = Annotated[int, Field(strict=True, ge=0)]
Epsilon = Annotated[float, Field(strict=True, ge=1e-6, le=1000)]
Delta = Annotated[float, Field(strict=True, ge=1e-100, lt=0.5)]


_OTHER_COORDINATOR = (
    "Nothing was sent. If this is the right coordinator, have the site's owner name it in policy.toml; otherwise call "
    "another one."
)
_COORDINATOR = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?|[0-9A-Fa-f:.]+")
_DIGEST = re.compile("[0-9a-f]{64}")


class DatasetPolicy(BaseModel):
    """The rules and the privacy budget of one table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=200)
    path: Path
    columns: tuple[str, ...] = ()
    public: bool = Field(default=False, strict=True)
    max_epsilon: Epsilon
    max_delta: Delta
    max_epsilon_per_run: Epsilon
    max_epsilon_against_all: Epsilon | None = None
    max_epsilon_per_person: Epsilon | None = None
    mixed_releases: bool = Field(default=False, strict=True)

    @model_validator(mode="after")
    def _more_against_all(self) -> Self:
        if self.max_epsilon_against_all is not None and self.max_epsilon_against_all < self.max_epsilon:
            raise ValueError(
                f"max_epsilon_against_all = {self.max_epsilon_against_all:g}: must be at least max_epsilon = "
                f"{self.max_epsilon:g}: who colludes with others knows no less"
            )
        return self

    @cached_property
    def cap_against_all(self) -> Cap | None:
        """What all releases may cost if coordinator and other sites collude; None: no secure aggregation."""
        if self.max_epsilon_against_all is None:
            return None
        return self._cap(self.max_epsilon_against_all)

    @cached_property
    def cap_per_person(self) -> Cap:
        """What all releases together may cost somebody with a record at as many sites as a plan says."""
        return self._cap(self.max_epsilon_per_person or self.max_epsilon)

    @cached_property
    def cap(self) -> Cap:
        """What all releases of this table together may cost."""
        return self._cap(self.max_epsilon)

    @cached_property
    def run_cap(self) -> Cap:
        """What one run may cost."""
        return self._cap(self.max_epsilon_per_run)

    def _cap(self, epsilon: float) -> Cap:
        cap = Cap.of(epsilon, self.max_delta)
        return Cap(cap.units, cap.units) if self.mixed_releases else cap


class Policy(BaseModel):
    """The rules of one site."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    site: str
    coordinators: tuple[str, ...] = ()
    coordinator_ca: str | tuple[str, ...] = ""
    allowed_solvers: tuple[Solver, ...] = ()
    allow_non_private: bool = Field(default=False, strict=True)
    auto_approve: Annotated[bool, Field(strict=True)] | tuple[str, ...] = False
    min_participants: Count = 2
    min_rows: Count = 100
    min_honest: Count = 2
    max_retries: Count = 1
    least_cell: Count = 0
    allow_small_pairs: bool = Field(default=False, strict=True)
    datasets: tuple[DatasetPolicy, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not is_site_name(self.site):
            raise ValueError(f"site = {self.site!r}: use {SITE_NAME_RULE}")
        for named in self.coordinators:
            if not _COORDINATOR.fullmatch(named):
                raise ValueError(
                    f"coordinators: {named!r} is neither a host nor host:port, such as hub.example.org:50051"
                )
        ids = [dataset.id for dataset in self.datasets]
        if len(set(ids)) != len(ids):
            raise ValueError("datasets: two have the same id; each dataset needs its own id, which has one budget")
        if not isinstance(self.auto_approve, bool) and not all(map(_DIGEST.fullmatch, self.auto_approve)):
            raise ValueError("auto_approve: a list must hold whole digests of plans, 64 hexadecimal digits each")
        return self

    @property
    def least_pair(self) -> int:
        """Counts of single levels and of pairs of fewer records are told by no plan without privacy."""
        return 0 if self.allow_small_pairs else self.least_cell

    @classmethod
    def load(cls, path: Path) -> Self:
        """The policy in a TOML file.

        Raises SetupError if it cannot be read, holds an unknown rule, or names one file twice.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(f"policy {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        policy = cls.parse(text, origin=str(path))
        files = [(dataset.id, set(file_identity(path.parent / dataset.path))) for dataset in policy.datasets]
        for (one, known_as), (other, also_as) in itertools.combinations(files, 2):
            if known_as & also_as:
                raise _unusable(
                    f"policy {path} cannot be used: datasets {one!r} and {other!r} are the same file; one table has "
                    "one id, and so one budget"
                )
        return policy

    @classmethod
    def parse(cls, text: str, *, origin: str) -> Self:
        """A policy from TOML text; see `load`."""
        try:
            return cls.model_validate(parse_toml(text))
        except ValidationError as error:
            raise _unusable(f"policy {origin} cannot be used:\n" + "\n".join(map(_in_words, error.errors()))) from None
        except ValueError as error:
            raise _unusable(f"policy {origin} is not valid TOML: {error}") from None

    def dataset(self, dataset_id: str | None) -> DatasetPolicy:
        """The dataset of that id; None: the only one.

        Raises PolicyRefusal if there is no such dataset, or None and not exactly one.
        """
        found = [d for d in self.datasets if dataset_id in (None, d.id)]
        if len(found) != 1:
            known = ", ".join(d.id for d in self.datasets) or "none"
            asked = "no dataset was named" if dataset_id is None else f"dataset {dataset_id!r}"
            add = (
                "Give the table an entry [[datasets]] in policy.toml; then: fedbnsl participant register FOLDER DATASET"
            )
            choose = f"Name one that the policy has. If it is a new table: {add[0].lower()}{add[1:]}"
            raise PolicyRefusal(
                f"rule `datasets`: {asked}; the policy has: {known}", remedy=choose if self.datasets else add
            )
        return found[0]

    def check_coordinator(self, address: str, *, authority: str) -> None:
        """Refuse a coordinator that the policy does not name; check this before the first call to it.

        Raises PolicyRefusal if the address (host:port), or its host, is not among those that the policy names, or the
        authority, by its fingerprint (empty: none, the wire is plaintext), is not the one that it names.
        """
        if address not in self.coordinators and address.rpartition(":")[0] not in self.coordinators:
            named = ", ".join(self.coordinators) or "none"
            raise PolicyRefusal(
                f"rule `coordinators`: {address} is not among them ({named})", remedy=_OTHER_COORDINATOR
            )
        from fedbnsl.identity.certificates import same_fingerprint  # here: plaintext needs no cryptography

        rule = (self.coordinator_ca,) if isinstance(self.coordinator_ca, str) else self.coordinator_ca
        if any(rule) and not any(same_fingerprint(one, authority) for one in rule):
            got = authority or "none, the wire is plaintext"
            raise PolicyRefusal(
                f"rule `coordinator_ca` = {', '.join(rule)}: the coordinator's authority is {got}",
                remedy=_OTHER_COORDINATOR,
            )

    def lists_exactly(self, digest: bytes) -> bool:
        """Whether `auto_approve` approves the very plan with this digest, names of sites and variables included."""
        return self.auto_approve if isinstance(self.auto_approve, bool) else digest.hex() in self.auto_approve

    def lists(self, plan: Plan) -> bool:
        """Whether `auto_approve` approves a plan, perhaps without the names of variables or sites."""
        if isinstance(self.auto_approve, bool):
            return self.auto_approve
        return any(approvable.hex() in self.auto_approve for approvable in plan.approvable_digests())

    def check_plan(self, plan: Plan, dataset: DatasetPolicy, *, n_samples: int, approved: bool) -> None:
        """Refuse a plan against the rules, before any record is read; `check_cost` checks the budget.

        Raises PolicyRefusal, naming the rule and the value.
        """
        privacy = plan.privacy
        exact = privacy is not None and privacy.smoothness == "exact"
        digest = plan.digest().hex()
        rules = [
            (
                plan.n_participants >= self.min_participants,
                f"`min_participants` = {self.min_participants}: the plan has n_participants = {plan.n_participants}",
            ),
            (
                not plan.secure_aggregation or plan.n_honest >= self.min_honest,
                f"`min_honest` = {self.min_honest}: the plan has n_participants = {plan.n_participants}, of which "
                f"{plan.n_participants - plan.n_honest} may collude or be said to be lost (privacy.colluding), so that "
                f"{plan.n_honest} must be honest",
            ),
            (
                plan.retries <= self.max_retries,
                f"`max_retries` = {self.max_retries}: the plan has privacy.secure_aggregation_retries = {plan.retries}",
            ),
            (n_samples >= self.min_rows, f"`min_rows` = {self.min_rows}: the table has {n_samples} rows"),
            (
                privacy is not None or self.allow_non_private or dataset.public,
                f"`allow_non_private` = false: the plan has no [privacy], and dataset {dataset.id!r} is not public",
            ),
            (
                plan.local_solver in self.allowed_solvers,
                f"`allowed_solvers` = {list(self.allowed_solvers)}: the plan has local_solver = '{plan.local_solver}'",
            ),
            (
                plan.privacy is not None or not self.least_pair or bool(plan.dictionary),
                f"`least_cell` = {self.least_cell}: the plan has neither [privacy] nor a data dictionary, so that "
                "nobody knows of which columns it would tell counts",
            ),
            (
                not exact or dataset.public,
                f"`public` = false for dataset {dataset.id!r}: the plan has smoothness = 'exact', which is not charged",
            ),
        ]
        for holds, rule in rules:
            if not holds:
                raise PolicyRefusal(f"rule {rule}")
        if not (approved or self.lists(plan)):
            raise NotApprovedError(
                f"rule `auto_approve`: the plan with digest {digest} is not approved",
                remedy="No value of a table was sent. Approve the very plan that the coordinator serves, plan.toml in "
                "its run folder: fedbnsl participant approve plan.toml FOLDER",
            )


def not_registered(folder: Path, dataset_id: str) -> PolicyRefusal:
    """The refusal of a dataset that the policy has and the ledger does not know."""
    return PolicyRefusal(
        f"rule `datasets`: {dataset_id!r} is not registered in the ledger",
        remedy=f"Register its table: {registrations.command(folder, dataset_id)}",
    )


def _unusable(text: str) -> SetupError:
    return SetupError(text, remedy="Correct policy.toml; without a policy that can be read, nothing is allowed.")


def _in_words(problem: Any) -> str:
    """A problem of a policy as text, with the name of its rule."""
    # Of ("datasets", 0, "path") the person needs "dataset 1: path"; pydantic names branches of a union, too.
    names = [part for part in problem["loc"] if isinstance(part, str) and "[" not in part and part != "bool"]
    number = next((f"dataset {part + 1}: " for part in problem["loc"] if isinstance(part, int)), "")
    where = number + names[-1] if names else ""
    if problem["type"] == "extra_forbidden":
        model = DatasetPolicy if number else Policy
        known = difflib.get_close_matches(names[-1], model.model_fields, n=1)
        return f"  {where}: no such rule" + (f"; did you mean {known[0]}?" if known else "")
    if problem["type"] == "missing":
        return f"  {where} is missing"
    message = in_toml_words(problem["msg"])
    return f"  {where} = {problem['input']!r}: {message}" if where else f"  {message}"


_MIXED = "; only where all runs of a table are priced by Gaussian DP are they counted so, and here not all are"


def _at(dataset: DatasetPolicy, price: Price) -> str:
    """Where a plan has another delta, its epsilons are other numbers than those beside a policy's."""
    return "" if price.delta == dataset.max_delta else f" (all at delta {dataset.max_delta:.3g}, the policy's)"


def check_cost_against_all(dataset: DatasetPolicy, price: Price, *, to_pay: Spending, spent: Spending) -> None:
    """As `check_cost`, if the coordinator and all other sites collude.

    Raises PolicyRefusal if the run has secure aggregation, and the policy has no such rule; BudgetExhaustedError if the
    dataset's budget does not hold it; with the numbers.
    """
    cap, whole = dataset.cap_against_all, (spent + to_pay).epsilon(dataset.max_delta)
    if cap is None and price.n_honest == 1:
        return
    if cap is None:
        raise PolicyRefusal(
            "rule `max_epsilon_against_all` is missing, and the plan has privacy.secure_aggregation: if the "
            f"coordinator and all other sites collude, this run costs epsilon {to_pay.epsilon(price.delta):.4g} at "
            f"delta {price.delta:.3g}",
            remedy=f"Have the site's owner set it for dataset {dataset.id!r} in policy.toml, or take a plan without "
            "secure_aggregation.",
        )
    if not cap.allows(spent + to_pay):
        raise BudgetExhaustedError(
            f"dataset {dataset.id!r}: if the coordinator and all other sites collude, the run costs epsilon "
            f"{to_pay.epsilon(dataset.max_delta):.4g}, together with what was spent {whole:.4g}: above "
            f"`max_epsilon_against_all` = {dataset.max_epsilon_against_all:g}{_at(dataset, price)}"
        )


def check_cost_per_person(dataset: DatasetPolicy, price: Price, k: int, *, to_pay: Spending, spent: Spending) -> None:
    """As `check_cost`, for somebody with a record at k sites, which have all spent the same.

    k is the most that the plan, or that of an earlier run, says: in whichever order they come, all count alike. Raises
    PolicyRefusal if the run alone costs more than the policy allows, BudgetExhaustedError if all releases together do.
    """
    cap, delta = dataset.cap_per_person, dataset.max_delta
    run, together = Spending(price.units_at(k), price.gaussian), spent + to_pay
    rule = f"`max_epsilon_per_person` = {dataset.max_epsilon_per_person or dataset.max_epsilon:g}"
    rule += "" if dataset.max_epsilon_per_person else " (not set: it is `max_epsilon`)"
    said = "the plan's" if k == price.sites_per_person else "an earlier plan's"
    who = f"somebody with a record at {k} site{'' if k == 1 else 's'} ({said} privacy.sites_per_person)"
    if not cap.allows(run):
        raise PolicyRefusal(
            f"rule {rule}: {who} loses epsilon {run.epsilon(delta):.4g} by the run{_at(dataset, price)}"
        )
    if not cap.allows(together):
        raise BudgetExhaustedError(
            f"dataset {dataset.id!r}: {who} loses epsilon {run.epsilon(delta):.4g} by the run, together with what was "
            f"spent before up to {together.epsilon(delta):.4g}: above {rule}{_at(dataset, price)}"
        )


def check_cost(
    dataset: DatasetPolicy, price: Price, *, to_pay: Spending, spent: Spending, spent_in_run: Spending
) -> None:
    """Refuse a run whose delta, epsilon or remaining cost exceeds what the policy allows its dataset.

    `to_pay` is what the rounds that are still to come will cost, `spent_in_run` the part of `spent` that is of this run
    (after a restart). Raises PolicyRefusal for a larger delta, or a larger epsilon for one run, than the policy allows,
    or for a run counted by zCDP where all before it is counted by Gaussian DP; BudgetExhaustedError if the dataset's
    budget does not hold it; with the numbers.
    """

    def cost(spending: Spending) -> str:
        return f"epsilon {spending.epsilon(dataset.max_delta):.4g} ({zcdp.zcdp_of(spending.units):.6g} zCDP)"

    if spent.gaussian and spent.units and not price.gaussian and not dataset.mixed_releases:
        raise PolicyRefusal(
            "rule `mixed_releases` = false: all that this table has released is counted by Gaussian differential "
            "privacy, and this plan is not. Whether it follows must not depend on what was released",
            remedy="Use a plan that `fedbnsl privacy price` counts so, such as `private`. For tables to come, where "
            "both are wanted, say mixed_releases = true in policy.toml before the first run: everything then counts "
            "by zCDP.",
        )
    if price.delta > dataset.max_delta:
        raise PolicyRefusal(f"rule `max_delta` = {dataset.max_delta:g}: the plan has delta = {price.delta:g}")
    if not dataset.run_cap.allows(spent_in_run + to_pay):
        raise PolicyRefusal(
            f"rule `max_epsilon_per_run` = {dataset.max_epsilon_per_run:g}: the run costs {cost(spent_in_run + to_pay)}"
            f"{_at(dataset, price)}"
        )
    if not dataset.cap.allows(spent + to_pay):
        raise BudgetExhaustedError(
            f"dataset {dataset.id!r}: the run costs {cost(to_pay)}; spent so far "
            f"{cost(spent)}; together {cost(spent + to_pay)}, above `max_epsilon` = "
            f"{dataset.max_epsilon:g}{_at(dataset, price)}"
            + ("" if (spent + to_pay).gaussian or not (spent.gaussian or to_pay.gaussian) else _MIXED)
        )
