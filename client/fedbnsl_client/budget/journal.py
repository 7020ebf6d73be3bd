"""The payments of one private run. For each release: reserve its price, draw the noise, store the answer."""

import hashlib
from collections.abc import Callable, Iterable, Sequence

from fedbnsl.errors import SchemaMismatchError
from fedbnsl.messages import LedgerHead
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import Price, recipe
from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl.security_log import Record, unrecorded
from fedbnsl_client.budget.ledger import Ledger, Request
from fedbnsl_client.budget.policy import DatasetPolicy, check_price, check_price_against_all
from fedbnsl_client.budget.spending import Spending


class RunJournal:
    """One site's releases in one run, paid for by one dataset.

    Parameters
    ----------
    dataset
        The policy's rules for the dataset.
    plan, price
        The run's settings and what they cost here.
    variables
        d names, in the order of the run.
    authority
        Fingerprint of the authority of the run's federation; empty: none, the wire is plaintext.
    record
        Told of every release: its round, its price, and the SHA-256 of its bytes, which are noise already.
    """

    def __init__(
        self,
        ledger: Ledger,
        dataset: DatasetPolicy,
        plan: Plan,
        price: Price,
        *,
        run: int,
        site: str,
        variables: Sequence[str] = (),
        authority: str = "",
        record: Record = unrecorded,
    ) -> None:
        self._ledger = ledger
        self._dataset = dataset
        self._price = price
        self._recipe = {**recipe(plan, price), "variables": list(variables)}
        self._run = run
        self._site = site
        self._variables = tuple(variables)
        self._authority = authority
        self._record = record

    @property
    def head(self) -> LedgerHead:
        """What the coordinator may know of the ledger."""
        return self._ledger.head(self._dataset.id, self._authority)

    def check(self) -> None:
        """Refuse the run if policy or budget do not allow the rounds not yet paid for; reads no record of the table.

        Raises
        ------
        PolicyRefusal, BudgetExhaustedError
            With the numbers.
        SchemaMismatchError
            If this site began this run with other variables, or in another order: its stored answers are for those.
        """
        begun_with = self._ledger.begun_with(self._run, self._site)
        if begun_with not in (None, self._variables):
            raise SchemaMismatchError(
                f"this site began this run with the variables {', '.join(begun_with or ())}; its stored answers do "
                f"not fit {', '.join(self._variables)}"
            )
        self._ledger.require_protected(self._dataset.id)
        to_pay = [t for t in range(self._price.last_round + 1) if self._ledger.stored(self._request(t)) is None]
        check_price(
            self._dataset,
            self._price,
            to_pay=self._cost(to_pay, self._price.units_of),
            spent=self._ledger.spending(self._dataset.id),
            spent_in_run=self._ledger.spending(self._dataset.id, self._run),
        )
        check_price_against_all(
            self._dataset,
            self._price,
            to_pay=self._cost(to_pay, self._price.share_units_of),
            spent=self._ledger.spending_against_all(self._dataset.id),
        )

    def release(self, t: int, draw: Callable[[], bytes]) -> bytes:
        """The stored answer of round t (0: the setup). If none: pay, call `draw`, store and return its bytes.

        Raises
        ------
        BudgetExhaustedError
            If the dataset's budget does not hold it.
        LedgerError
            If the ledger cannot be written.
        """
        request = self._request(t)
        kept = self._ledger.stored(request)
        if kept is not None:
            self._note(t, kept, event="released again", units=0)
            return kept
        # Reserve before drawing: a crash may waste budget, never overspend it.
        self._ledger.reserve(
            request,
            self._price.units_of(t),
            cap_units=self._dataset.cap.units,
            recipe={"round": t, **self._recipe},
            gaussian=self._price.gaussian,
            gaussian_cap_units=self._dataset.cap.gaussian_units,
            against_all=(self._price.share_units_of(t), self._dataset.cap_against_all),
            authority=self._authority,
        )
        payload = draw()
        self._ledger.store(request, payload)
        self._note(t, payload, event="released", units=self._price.units_of(t))
        return payload

    def stored(self, t: int) -> bytes | None:
        """The stored answer of round t, or None; pays for nothing."""
        return self._ledger.stored(self._request(t))

    def _cost(self, rounds: Iterable[int], units_of: Callable[[int], int]) -> Spending:
        return Spending(sum(map(units_of, rounds)), self._price.gaussian)

    def _note(self, t: int, payload: bytes, *, event: str, units: int) -> None:
        self._record(
            event,
            dataset=self._dataset.id,
            run=f"{self._run:016x}",
            round=t,
            zcdp=zcdp_of(units),
            sha256=hashlib.sha256(payload).hexdigest(),
        )

    def _request(self, t: int) -> Request:
        return Request(dataset=self._dataset.id, run=self._run, round=t, site=self._site)
