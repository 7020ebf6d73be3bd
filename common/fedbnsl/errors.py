"""The exceptions of fedbnsl, grouped by who is at fault. Each has an exit code and a remedy of one sentence.

Exit code 1 is kept for unexpected errors (bugs), exit code 2 for click (wrong usage).
"""


class FedbnslError(Exception):
    """Root of the tree.

    Parameters
    ----------
    remedy
        Replaces the remedy of the class.

    Attributes
    ----------
    exit_code
        The exit code of a command that ends with this error.
    remedy
        What the person at the keyboard can do about it.
    """

    exit_code: int = 1
    remedy: str = "This should not happen: please report it, with the output of the same command and --debug."

    def __init__(self, text: str, *, remedy: str | None = None) -> None:
        super().__init__(text)
        if remedy is not None:
            self.remedy = remedy


class PlanError(FedbnslError):
    """The plan holds an unknown, impossible or contradictory setting."""

    exit_code = 3
    remedy = "Correct the named setting in the plan file (or in --set) and start again."


class DataError(FedbnslError):
    """A table cannot be used. Its text may quote the table: it never crosses the wire."""

    exit_code = 4
    remedy = (
        "Correct the table, or say in columns.toml what is different here (docs/how-to/tables.md), and start again; "
        "nothing of it was sent."
    )


class ProtocolError(FedbnslError):
    """Coordinator and site do not speak the same protocol, or one of them broke it."""

    exit_code = 5
    remedy = "Check that coordinator and participants run the same version of fedbnsl, on the same plan."


class LocalProtocolError(ProtocolError):
    """A protocol error of this side."""


class RemoteProtocolError(ProtocolError):
    """A protocol error of the other side."""


class MalformedMessageError(RemoteProtocolError):
    """A message is not valid."""


class PlanMismatchError(RemoteProtocolError):
    """The other side works on another plan or another run."""


class MembershipLostError(PlanMismatchError):
    """The coordinator does not remember the site's membership in the run."""

    remedy = "Join the run first, with `fedbnsl participant join`, at the coordinator that serves it."


class StaleRoundError(RemoteProtocolError):
    """A message for a round that is over or has not begun."""


class SchemaMismatchError(RemoteProtocolError):
    """The variables of a site are not those of the run."""

    remedy = "Give the table the variables that the message names, or choose them with --columns."


class MembershipRefusedError(RemoteProtocolError):
    """A site may not take part under this name, or no longer."""

    remedy = "Ask the coordinator's operator. A site joins once, under a name of its own, while memberships are free."


class EjectedError(MembershipRefusedError):
    """The coordinator's operator took the site out of the run."""

    remedy = (
        "The operator of this run took your site out, and it cannot come back into this run. Ask them why: its "
        "columns, units or coding may differ from the others'. Other runs are not affected."
    )


class SetupError(FedbnslError):
    """An address, a name or an option that cannot be used."""

    exit_code = 2
    remedy = "Correct the named option and start again; see --help."


class UnreachableError(FedbnslError):
    """The other side does not answer."""

    exit_code = 6
    remedy = (
        "Check the address, that the coordinator runs, and that the port is open between the two machines; at a site, "
        "`fedbnsl participant check FOLDER` finds out what is wrong."
    )


class QuorumLostError(FedbnslError):
    """Too few sites answered before the run's deadline.

    Attributes
    ----------
    missing
        Those that did not.
    """

    exit_code = 7
    remedy = "Bring the named sites back (or lower `quorum` in the plan) and start a new run; the checkpoint is kept."
    missing: tuple[str, ...] = ()


class DivergenceError(FedbnslError):
    """An iterate or the objective is no longer finite."""

    exit_code = 8
    remedy = (
        "Lower `acyclicity_penalty` or `consensus_penalty`, or rescale variables whose spread is far from the others'."
    )


class ResultError(FedbnslError):
    """A run folder or a graph file cannot be read, or must not be overwritten."""

    exit_code = 9
    remedy = "Check the path; if a folder is in use, choose another one with --out (in Python, out=)."


class RunAbandonedError(FedbnslError):
    """The coordinator ended the run without a result."""

    exit_code = 10
    remedy = "Ask the coordinator's operator what happened; this site's table and settings need no change."


class LedgerError(FedbnslError):
    """The record of a site's spent privacy cannot be used, or refuses an entry. Its text stays at the site."""

    exit_code = 11
    remedy = (
        "No value of a table was sent. Correct what the message names. Never delete or restore a ledger to get past "
        "this: if its newest file is lost, count the whole budget of its datasets as spent."
    )


class PolicyRefusal(FedbnslError):  # noqa: N818 - a decision of the site, not a mistake
    """The site's own policy does not allow what was asked."""

    exit_code = 12
    remedy = (
        "No value of a table was sent. Ask the run's operator for another plan, or have the site's owner change "
        "policy.toml."
    )


class NotApprovedError(PolicyRefusal):
    """Nobody at the site has approved the plan, or not for one more run."""


class PeerRefusedError(PolicyRefusal):
    """A site or a key in secure aggregation that this site does not rely on."""


class BudgetExhaustedError(FedbnslError):
    """A dataset's privacy budget does not pay for what was asked."""

    exit_code = 13
    remedy = (
        "No value of a table was sent for it. Ask for a cheaper plan, or have the site's owner raise the dataset's "
        "budget in policy.toml; what is spent never comes back."
    )


class IdentityError(FedbnslError):
    """A certificate, a key or an enrolment is not valid, or belongs to somebody else."""

    exit_code = 14
    remedy = "Correct what the message names and start again; nothing was changed."


class UnknownEndError(FedbnslError):
    """What is there of a security log is whole, but nothing tells whether its end is missing."""

    exit_code = 15
    remedy = "Pass a head that was noted before with --head, or verify as the user whose commands write the log."


class InterruptedRunError(FedbnslError):
    """A person or the system asked the run to stop.

    Attributes
    ----------
    signal_number
        Of the signal that asked; 0: it was none.
    """

    signal_number = 0
    exit_code = 130
    remedy = (
        "What was learned in finished rounds is in the coordinator's run folder, if it has one; a site continues with "
        "the same command while the run lasts."
    )


class LeftError(InterruptedRunError):
    """A person at the site asked to leave a run that goes on."""

    remedy = "The site can join again with the same command while the run lasts."
