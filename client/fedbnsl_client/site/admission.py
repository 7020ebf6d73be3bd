"""The table that a site brings to a run: a public one, or one guarded by its policy and its ledger."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedbnsl.errors import LedgerError, NotApprovedError, PolicyRefusal, SetupError
from fedbnsl.events.security_log import Record, unrecorded
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.privacy.report import adversary, epsilon_at
from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl.protocol.messages import LedgerHead
from fedbnsl_client.budget.approvals import Approval, Terms
from fedbnsl_client.budget.journal import RunHere, RunJournal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import Policy, not_registered
from fedbnsl_client.budget.registrations import Registration
from fedbnsl_client.budget.report import refuse_blocks
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import (
    refuse_other_absent,
    refuse_other_columns,
    refuse_other_dictionary,
    require_rows_here,
    rows_for,
)
from fedbnsl_client.data.small_cells import refuse_small_cells
from fedbnsl_client.participant import Unaccounted
from fedbnsl_client.rounds.kinds import Journal
from fedbnsl_client.secure_aggregation import peers
from fedbnsl_client.secure_aggregation.attestation import Attestation
from fedbnsl_client.site import folder as site_folder

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials
    from fedbnsl_client.data.dask_table import Cluster


@dataclass(frozen=True)
class Budget:
    """What a dataset has spent and may spend, as epsilons at its policy's delta."""

    dataset: str
    spent_epsilon: float
    max_epsilon: float
    left_epsilon: float  # what one more run may cost; epsilons do not add up
    delta: float
    lost_zcdp: float  # of what is spent: charged for entries that a restored ledger has lost, of whichever runs


class Admission(ABC):
    """What a site offers to a run, and under which conditions; by default nothing is counted."""

    site: str
    variables: tuple[str, ...]  # columns that it offers
    n_samples: int  # rows of its table (public)
    dictionary: Dictionary  # what it takes its variables for; empty: all columns are numbers

    @property
    def ledger_head(self) -> LedgerHead | None:
        """Where its ledger stands, if it has one."""
        return None

    @property
    def least_cell(self) -> int:
        """Counts of fewer records are not told; 0: all are."""
        return 0

    @property
    def dataset_id(self) -> str:
        """Under which name its ledger counts the table; empty: it is not counted."""
        return ""

    def paid_units(self, run: int) -> int | None:
        """What it has paid in a run, by its number, in units of 1e-12 zCDP; None: nothing is counted."""
        return None

    def budget(self) -> Budget | None:
        """What its table has spent in all, and may spend; None: nothing is counted."""
        return None

    def price(self, plan: Plan) -> Mapping[str, float | str] | None:
        """What a whole run of a plan costs: epsilon, delta and against whom, as `approve` says, and zcdp of a record.

        None: nothing is counted.
        """
        return None

    def attestation(self, credentials: "Credentials | None") -> Attestation:
        """How it signs its keys for secure aggregation and checks those of the other sites."""
        if credentials is None:
            return Attestation()
        from fedbnsl_client.secure_aggregation.keys import Enrolled  # here: plaintext needs no cryptography

        return Enrolled(credentials)  # nobody need be confirmed, as nothing is protected

    @abstractmethod
    def admit(self, plan: Plan, run: int, variables: Sequence[str]) -> tuple[Dataset, Journal]:
        """The table for a plan, and the journal that pays for its releases; refuses before a record is read.

        `variables` are those that the site offers, in the order of the run.
        """


class PublicTable(Admission):
    """A table that anybody may see: nothing is refused and nothing is counted."""

    def __init__(self, site: str, dataset: Dataset) -> None:
        self.site = site
        self.variables = dataset.variables
        self.dictionary = dataset.dictionary
        self.n_samples = dataset.n_samples
        self._dataset = dataset

    def admit(self, plan: Plan, run: int, variables: Sequence[str]) -> tuple[Dataset, Journal]:
        """See `Admission.admit`.

        Raises SchemaMismatchError if the plan has another data dictionary, or says that other variables are absent at
        this site; DataError if rows have missing values that the plan does not take, or the plan needs rows that are
        elsewhere.
        """
        refuse_other_dictionary(plan, self.dictionary)
        refuse_other_absent(plan, self.site, self._dataset.absent)
        refuse_other_columns(plan, variables)
        require_rows_here(self._dataset, plan)
        return rows_for(self._dataset.reordered(variables), plan), Unaccounted()


class GuardedTable(Admission):
    """A table that is used as its site's policy says, and paid for from the site's ledger.

    Rows and columns are those that were registered, or some of these columns: no record is read before the run is
    admitted. `dataset_id` None is the policy's only dataset, `blocks` those of its records that are used (empty: all),
    `authority` the fingerprint of that which attests the coordinator (empty: none, the wire is plaintext). `record` is
    told of every release that is paid for. The workers of `cluster` read the table, if there is one. Raises
    PolicyRefusal if the policy has no such dataset, or the ledger does not know it; LedgerError if that is
    sealed; SetupError if it has no such block, or workers would have to choose its records.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        ledger: Ledger,
        dataset_id: str | None,
        *,
        blocks: Sequence[int] = (),
        columns: Sequence[str] = (),
        max_file_bytes: int | None = None,
        authority: str = "",
        record: Record = unrecorded,
        cluster: "Cluster | None" = None,
    ) -> None:
        ledger.require_open()
        self._folder, self._policy, self._ledger = folder, policy, ledger
        self._dataset = policy.dataset(dataset_id)
        registered = ledger.registrations.find(self._dataset.id)
        if registered is None:
            raise not_registered(folder, self._dataset.id)
        self._whole, self._used = registered, registered.of_blocks(blocks)
        if cluster is not None:
            refuse_some_blocks(self._whole, self._used)
        self._cluster = cluster
        self.dictionary, mapping = site_folder.described(folder)
        self._absent = mapping.absent
        used = columns
        if self.dictionary and columns and all(name in self.dictionary for name in columns):
            used = [column.name for column in self.dictionary.columns(columns)]
        missing = [name for name in used if name not in registered.variables]
        if missing:
            raise PolicyRefusal(f"rule `columns`: the registered table has no {', '.join(missing)}")
        self.site = policy.site
        self.variables = tuple(used) or registered.variables
        self.n_samples = self._used.n_samples
        self._sizes = {"n_samples": self.n_samples, "n_variables": len(self.variables)}
        self._max_file_bytes = max_file_bytes
        self._authority = authority
        self._record = record

    @property
    def ledger_head(self) -> LedgerHead:
        """See `Admission.ledger_head`."""
        return self._ledger.payments.head(self._dataset.id, self._authority)

    @property
    def least_cell(self) -> int:
        """See `Admission.least_cell`."""
        return self._policy.least_cell

    @property
    def dataset_id(self) -> str:
        """See `Admission.dataset_id`."""
        return self._dataset.id

    def paid_units(self, run: int) -> int:
        """See `Admission.paid_units`."""
        return self._ledger.payments.spending(self._dataset.id, run, with_lost=False).units

    def budget(self) -> Budget:
        """See `Admission.budget`."""
        spent = self._ledger.payments.spending(self._dataset.id, blocks=self._used.numbers)
        delta = self._dataset.max_delta
        left = self._dataset.cap.left(spent, gaussian=True).epsilon(delta)
        known = self._ledger.payments.spending(self._dataset.id, blocks=self._used.numbers, with_lost=False)
        lost = zcdp_of(spent.units - known.units)
        return Budget(self._dataset.id, spent.epsilon(delta), self._dataset.max_epsilon, left, delta, lost)

    def price(self, plan: Plan) -> Mapping[str, float | str] | None:
        """See `Admission.price`."""
        if plan.privacy is None:
            return None
        price = price_of(plan, **self._sizes)
        epsilon = epsilon_at(price, price.sites_per_person)
        against = adversary(price, plan.n_participants)
        return {"epsilon": epsilon, "delta": price.delta, "against": against, "zcdp": zcdp_of(price.units)}

    def attestation(self, credentials: "Credentials | None") -> Attestation:
        """See `Admission.attestation`."""
        if credentials is None:
            return Attestation()
        from fedbnsl_client.secure_aggregation.keys import Enrolled
        from fedbnsl_client.site.identity import federation_names, place_with, unprotected_key

        place = place_with(self._folder, self._authority)
        federation = federation_names(self._folder).get(self._authority, "")

        def followed(site: str, old: str, new: str) -> None:
            peers.note_followed(place, site, old, new)
            self._record("peer key followed", federation=federation, site=site, former=old, fingerprint=new)

        known = peers.read(place)
        return Enrolled(
            credentials,
            known.confirmed,
            former=known.former,
            followed=followed,
            earlier_key=partial(unprotected_key, place),
        )

    def admit(self, plan: Plan, run: int, variables: Sequence[str]) -> tuple[Dataset, Journal]:
        """See `Admission.admit`.

        Raises PolicyRefusal, BudgetExhaustedError or SchemaMismatchError before a record is read; the last one also if
        the plan has another data dictionary, or says that other variables are absent here; DataError or LedgerError if
        the table cannot be read, or is not the one that was registered, or another process of this site takes part in
        the run.
        """
        refuse_other_dictionary(plan, self.dictionary)
        refuse_other_absent(plan, self.site, self._absent)
        refuse_other_columns(plan, variables)
        refuse_blocks(plan, self._whole, self._used)
        self._ledger.payments.take_run(run)
        self._ledger.require_open()  # again: it may have been sealed while this site waited for others
        self._policy.check_plan(plan, self._dataset, n_samples=self.n_samples, approved=self._is_approved(plan))
        self._note_part(plan, run)
        journal: Journal = Unaccounted()
        if plan.privacy is not None:
            if plan.secure_aggregation and not self._authority:
                raise PolicyRefusal(
                    "privacy.secure_aggregation: in plaintext nobody attests the other sites, and whoever runs the "
                    "coordinator could have invented them",
                    remedy="Join over TLS: fedbnsl participant request, then enrol. Or agree on the plan without, for "
                    "more noise: --set privacy.secure_aggregation=false.",
                )
            price = price_of(plan, **self._sizes)
            here = RunHere(run, self.site, tuple(variables), self._authority, self._used.numbers)
            paying = RunJournal(self._ledger.payments, self._dataset, plan, price, here, self._record)
            paying.check()
            journal = paying
        table = site_folder.read_table(
            self._folder,
            self._policy,
            self._dataset.id,
            cluster=self._cluster,
            max_file_bytes=self._max_file_bytes,
        )
        require_rows_here(table, plan)
        self._ledger.registrations.check_table(self._dataset.id, table.variables, table.X, table.whose)
        if self._ledger.registrations.find(self._dataset.id) != self._whole:
            # The privacy cost was computed for other records: those that came meanwhile would not be charged.
            raise LedgerError(
                f"the table of dataset {self._dataset.id!r} was registered again while this site joined",
                remedy="Join once more.",
            )
        if self._used.numbers != self._whole.numbers:
            rows = self._ledger.registrations.rows_of(self._used, table.variables, table.X, table.whose)
            table = table.of_rows(rows)
        table = table.reordered(variables)
        table = rows_for(table, plan)
        refuse_small_cells(table.X, table.columns, plan, self._policy.least_pair)
        if plan.privacy is None and not self._dataset.public:
            # Before anything is sent, for the privacy loss of this run has no bound; not for a table that is refused.
            self._ledger.payments.note_unprotected(self._dataset.id, run, plan.digest())
        return table, journal

    def _is_approved(self, plan: Plan) -> bool:
        """Whether a plan is approved for the run's federation, perhaps without the names of sites and variables."""
        from fedbnsl_client.site.identity import is_of

        known = self._ledger.approvals.current()
        return any(
            not one.authority or is_of(self._folder, one.authority, self._authority)
            for digest in plan.approvable_digests()
            for one in known.get(digest.hex(), ())
        )

    def _note_part(self, plan: Plan, run: int) -> None:
        """A person who joins takes part in as many runs as the budget holds."""


class UnattendedTable(GuardedTable):
    """A table that an agent brings: the very plan must be approved, with its sites and its cost, or be listed."""

    def _is_approved(self, plan: Plan) -> bool:
        return True  # `_note_part` is stricter

    def _note_part(self, plan: Plan, run: int) -> None:
        """Refuse an agent what its operator has not approved, or the policy does not list; note what it takes part in.

        Raises NotApprovedError, saying what differs.
        """
        approval: Approval | None = None
        if not self._policy.lists_exactly(plan.digest()):
            approval, terms = approved_terms(self._folder, self._ledger, plan, run, self._authority)
            ours = Terms.of(plan, self._dataset.id, **self._sizes, runs=terms.runs, blocks=terms.blocks)
            if why := terms.why_other(ours):
                raise NotApprovedError(f"the run is not the one that was approved: {why}")
        self._ledger.approvals.note_agent(run, plan.digest(), authority=self._authority, approval=approval)


def refuse_some_blocks(whole: Registration, used: Registration) -> None:
    """Refuse to let workers read some blocks of a table: sums over rows do not tell which records they are.

    Raises SetupError with the way on.
    """
    if whole.numbers != used.numbers:
        raise SetupError(
            f"--blocks {','.join(map(str, used.numbers))} cannot be used with --engine: which records of dataset "
            f"{whole.dataset!r} are in a block is known at the site, and Dask workers read all of them",
            remedy="Leave out --blocks: a run over all blocks is charged to each of them. Or leave out --engine on a "
            "machine that holds the table.",
        )


def approval_for(folder: Path, known: Sequence[Approval], authority: str) -> Approval | None:
    """That approval of a plan by which an agent goes in the federation of an authority (empty: plaintext, any one).

    One that names no federation is for the folder's first one, if it is for agents.
    """
    from fedbnsl_client.site.identity import is_of  # here: plaintext needs no cryptography

    for one in reversed(known):
        if (one.terms is None and not one.authority) or is_of(folder, one.authority, authority):
            return one
    return None


def approved_terms(folder: Path, ledger: Ledger, plan: Plan, run: int, authority: str) -> tuple[Approval, Terms]:
    """By which approval, and on which terms, an agent may take part in a run of a plan, in an authority's federation.

    Raises NotApprovedError if none may, or only in another federation, or in fewer runs than it has taken part in.
    """
    of_plan = ledger.approvals.current().get(plan.digest().hex(), ())
    remedy = "Look at it and approve it: fedbnsl participant runs FOLDER --save PLANS, then participant approve."
    if not of_plan:
        raise NotApprovedError(f"the plan with digest {plan.digest().hex()} is not approved here", remedy=remedy)
    if not plan.sites:
        raise NotApprovedError(
            "the plan names no sites, so that nobody has approved with whom an agent takes part",
            remedy="Ask the coordinator's operator to name them (runs start --sites), or let a person join.",
        )
    known = approval_for(folder, of_plan, authority)
    if known is None:
        raise NotApprovedError(
            "the plan is approved for runs in another federation",
            remedy="Approve it for this one, too: fedbnsl participant approve PLAN FOLDER --federation NAME.",
        )
    if known.terms is None:
        raise NotApprovedError("the plan is approved, but for no run of an agent", remedy=remedy)
    if not known.runs_left and not ledger.approvals.agent_was_in(run, plan.digest(), authority=authority):
        raise NotApprovedError(
            f"the plan is approved for {known.terms.runs} run(s) of an agent, and it has taken part in "
            f"{len(known.taken)}",
            remedy="Approve it again for more: fedbnsl participant approve PLAN FOLDER --runs N.",
        )
    return known, known.terms
