"""What a site allows, from its own policy.toml: whatever is not allowed there is refused. No message can change it."""

import tomllib
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbnsl import zcdp
from fedbnsl.errors import BudgetExhaustedError, PolicyRefusal, SetupError
from fedbnsl.messages import SITE_NAME_RULE, is_site_name
from fedbnsl.plan import Plan
from fedbnsl.price import Price

Count = Annotated[int, Field(strict=True, ge=0)]
Epsilon = Annotated[float, Field(strict=True, gt=0, le=1000)]
Delta = Annotated[float, Field(strict=True, gt=0, lt=0.5)]


class DatasetPolicy(BaseModel):
    """One table and what may ever be learned about a record of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=200)
    path: Path
    columns: tuple[str, ...] = ()
    public: bool = Field(default=False, strict=True)
    max_epsilon: Epsilon
    max_delta: Delta
    max_epsilon_per_run: Epsilon

    @property
    def cap_units(self) -> int:
        """What all releases of this table together may cost, in units of 1e-12 zCDP."""
        return zcdp.units_within(zcdp.budget(self.max_epsilon, self.max_delta))

    @property
    def run_cap_units(self) -> int:
        """What one run may cost."""
        return zcdp.units_within(zcdp.budget(self.max_epsilon_per_run, self.max_delta))


class Policy(BaseModel):
    """The rules of one site."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    site: str
    coordinators: tuple[str, ...] = ()
    allowed_solvers: tuple[str, ...] = ()
    allow_non_private: bool = Field(default=False, strict=True)
    auto_approve: Annotated[bool, Field(strict=True)] | tuple[str, ...] = False
    min_participants: Count = 2
    min_rows: Count = 100
    datasets: tuple[DatasetPolicy, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not is_site_name(self.site):
            raise ValueError(f"site = {self.site!r}: use {SITE_NAME_RULE}")
        ids = [dataset.id for dataset in self.datasets]
        if len(set(ids)) != len(ids):
            raise ValueError("datasets: two have the same id; one budget belongs to one id")
        return self

    @classmethod
    def load(cls, path: Path) -> Self:
        """The policy in a TOML file.

        Raises
        ------
        SetupError
            If it cannot be read, or says something that no rule is called.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(f"policy {path} cannot be read: {error}") from None
        return cls.parse(text, origin=str(path))

    @classmethod
    def parse(cls, text: str, *, origin: str) -> Self:
        """A policy from TOML text; see `load`."""
        try:
            return cls.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise SetupError(f"policy {origin} is not valid TOML: {error}") from None
        except ValidationError as error:
            lines = [
                f"  {'.'.join(map(str, e['loc'])) or 'policy'} = {e['input']!r}: {e['msg'].lower()}"
                if e["loc"]
                else f"  {e['msg'].removeprefix('Value error, ')}"
                for e in error.errors()
            ]
            raise SetupError("\n".join([f"policy {origin} cannot be used:", *lines])) from None

    def dataset(self, dataset_id: str | None) -> DatasetPolicy:
        """The dataset of that id; None: the only one.

        Raises
        ------
        PolicyRefusal
            If there is no such dataset, or no single one.
        """
        found = [d for d in self.datasets if dataset_id in (None, d.id)]
        if len(found) != 1:
            known = ", ".join(d.id for d in self.datasets) or "none"
            asked = "no --dataset was named" if dataset_id is None else f"--dataset {dataset_id!r}"
            raise PolicyRefusal(f"rule `datasets`: {asked}; the policy has: {known}")
        return found[0]

    def check_coordinator(self, address: str) -> None:
        """Before the first call.

        Raises
        ------
        PolicyRefusal
            If the address (host:port), or its host, is not among those that the policy names.
        """
        if address not in self.coordinators and address.rpartition(":")[0] not in self.coordinators:
            named = ", ".join(self.coordinators) or "none"
            raise PolicyRefusal(f"rule `coordinators`: {address} is not among them ({named})")

    def check_plan(self, plan: Plan, dataset: DatasetPolicy, *, n_samples: int, approved: bool) -> None:
        """After the plan is known and before any record is read; the budget is checked by `check_price`.

        Raises
        ------
        PolicyRefusal
            Naming the rule and the value.
        """
        privacy = plan.privacy
        exact = privacy is not None and privacy.smoothness == "exact"
        digest = plan.digest().hex()
        listed = self.auto_approve is True or (self.auto_approve is not False and digest in self.auto_approve)
        rules = [
            (
                plan.n_participants >= self.min_participants,
                f"`min_participants` = {self.min_participants}: the plan has n_participants = {plan.n_participants}",
            ),
            (n_samples >= self.min_rows, f"`min_rows` = {self.min_rows}: the table has {n_samples} rows"),
            (
                plan.local_solver in self.allowed_solvers,
                f"`allowed_solvers` = {list(self.allowed_solvers)}: the plan has local_solver = '{plan.local_solver}'",
            ),
            (
                privacy is not None or self.allow_non_private or dataset.public,
                f"`allow_non_private` = false: the plan has no [privacy], and dataset {dataset.id!r} is not public",
            ),
            (
                not exact or dataset.public,
                f"`public` = false for dataset {dataset.id!r}: the plan has smoothness = 'exact', which is not charged",
            ),
            (
                approved or listed,
                f"`auto_approve`: the plan {digest[:16]}... is not approved (participant approve PLAN)",
            ),
        ]
        for holds, rule in rules:
            if not holds:
                raise PolicyRefusal(f"rule {rule}")


def check_price(dataset: DatasetPolicy, price: Price, *, units_left: int, spent: int, spent_in_run: int) -> None:
    """Whether the rest of a run is within the budget of its dataset.

    Parameters
    ----------
    units_left
        What the rounds that are still to come will cost.
    spent, spent_in_run
        What the dataset has lost so far, and what of that in this run (after a restart).

    Raises
    ------
    PolicyRefusal
        For a larger delta, or a larger epsilon a run, than the policy allows.
    BudgetExhaustedError
        If the dataset's budget does not hold it; with the numbers.
    """
    if price.delta > dataset.max_delta:
        raise PolicyRefusal(f"rule `max_delta` = {dataset.max_delta:g}: the plan has delta = {price.delta:g}")
    if spent_in_run + units_left > dataset.run_cap_units:
        raise PolicyRefusal(
            f"rule `max_epsilon_per_run` = {dataset.max_epsilon_per_run:g}: the run costs "
            f"{_epsilon(spent_in_run + units_left, dataset)}"
        )
    if spent + units_left > dataset.cap_units:
        raise BudgetExhaustedError(
            f"dataset {dataset.id!r}: the run costs {_epsilon(units_left, dataset)}; spent so far "
            f"{_epsilon(spent, dataset)}; together {_epsilon(spent + units_left, dataset)}, above `max_epsilon` = "
            f"{dataset.max_epsilon:g}"
        )


def _epsilon(units: int, dataset: DatasetPolicy) -> str:
    return f"epsilon {zcdp.epsilon_of(zcdp.zcdp_of(units), dataset.max_delta):.4g} ({zcdp.zcdp_of(units):.6g} zCDP)"
