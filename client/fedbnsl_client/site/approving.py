"""What a person is shown of a plan before it is approved for a site's table, and the record of the approval."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedbnsl.errors import BudgetExhaustedError, PolicyRefusal
from fedbnsl.plan.plan import Plan
from fedbnsl_client.budget.approvals import Terms
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.registrations import Registration
from fedbnsl_client.budget.report import approval_lines, refuse_what_cannot_run, small_cell_lines
from fedbnsl_client.data.plan_fit import (
    PlanFit,
    fit_of,
    refuse_beyond_bounds,
    refuse_other_absent,
    refuse_other_dictionary,
    require_present,
    rows_for,
    site_lines,
)
from fedbnsl_client.data.small_cells import refuse_small_cells
from fedbnsl_client.secure_aggregation.needed import peer_lines
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site import identity
from fedbnsl_client.site.admission import refuse_some_blocks

if TYPE_CHECKING:
    from fedbnsl_client.data.dask_table import Cluster


@dataclass(frozen=True)
class Proposal:
    """A plan that policy, budget and table of a site allow now; for one thread, as the ledger is open."""

    plan: Plan
    dataset: str
    fit: PlanFit  # how the table fits the plan; stays at the site
    site: str
    _folder: Path
    _place: Path
    _ledger: Ledger
    _registered: Registration

    def approve(self, n_runs: int, **who: str) -> bool:
        """Record the approval, for so many runs of an agent; return whether one may take part in any.

        None may in those of a plan without the names of its sites: nobody would know with whom. `who` goes into the
        security log, too.
        """
        terms, authority = None, identity.authority_of(self._place)
        if n_runs and self.plan.sites:
            sizes, blocks = self._registered.sizes, self._registered.numbers
            terms = Terms.of(self.plan, self.dataset, **sizes, runs=n_runs, blocks=blocks)
        self._ledger.approvals.approve(self.plan.digest(), self.plan.name, terms, authority=authority)
        digest = self.plan.digest().hex()
        log = site_folder.security_log(self._folder)
        of = identity.federation_names(self._folder).get(authority, "")
        log.enter("approved", plan_digest=digest, plan=self.plan.name, dataset=self.dataset, federation=of, **who)
        return terms is not None


@contextmanager
def proposed(
    plan: Plan,
    folder: Path,
    show: Callable[[str], None],
    *,
    dataset_id: str | None = None,
    blocks: tuple[int, ...] = (),
    every: bool = False,
    beyond_bounds: bool = False,
    federation: str | None = None,
    cluster: "Cluster | None" = None,
) -> Generator[Proposal]:
    """Show what a run of a plan would cost and how the table fits, line by line, and let it be approved.

    The options are those of `fedbnsl participant approve`. Raises PolicyRefusal or BudgetExhaustedError, after what it
    would cost was shown, where a run would be refused; DataError, LedgerError or SchemaMismatchError for a table that
    is not the registered one, before that, or not the plan's.
    """
    place = identity.place_of(folder, federation)
    with site_folder.opened(folder) as (policy, ledger):
        dataset = policy.dataset(dataset_id)
        lines = [*small_cell_lines(plan, policy), *approval_lines(plan, dataset, ledger, blocks=blocks, every=every)]
        try:
            registered = refuse_what_cannot_run(plan, policy, dataset, ledger, folder, blocks=blocks)
        except (BudgetExhaustedError, PolicyRefusal):
            for line in lines:
                show(line)
            raise
        dictionary, mapping = site_folder.described(folder)
        refuse_other_dictionary(plan, dictionary)
        refuse_other_absent(plan, policy.site, mapping.absent)
        whole = ledger.registrations.find(dataset.id)
        if cluster is not None and whole is not None:
            refuse_some_blocks(whole, registered)
        table = site_folder.read_table(folder, policy, dataset.id, cluster=cluster)
        ledger.registrations.check_table(dataset.id, table.variables, table.X, table.whose, in_full=True)
        for line in lines:  # not before: the cost is that of the registered table
            show(line)
        if blocks:
            table = table.of_rows(ledger.registrations.rows_of(registered, table.variables, table.X, table.whose))
        used = table.reordered(plan.column_names or table.variables)
        require_present(used, plan)
        if plan.privacy is None and policy.least_pair:
            rows = rows_for(used, plan)
            refuse_small_cells(rows.X, rows.columns, plan, policy.least_pair)
        fit = fit_of(table, plan)
        for line in (*peer_lines(plan, place, policy.site), *site_lines(table, plan, fit)):
            show(line)
        if not beyond_bounds:
            refuse_beyond_bounds(fit, dataset.id)
        yield Proposal(plan, dataset.id, fit, policy.site, folder, place, ledger, registered)
