"""A site's own folder: its policy and its ledger, made together and never overwritten."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tomli_w

from fedbnsl import durable
from fedbnsl.errors import SetupError
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.data.checks import DataWarning, columns_without_mean, listed
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.fingerprint import file_identity

POLICY = "policy.toml"
LEDGER = "ledger.db"

_TEMPLATE = """\
# What this site allows. Everything that is not allowed here is refused; no message can change it.
# Every refusal names its rule. Edit this file with care, and keep {ledger} beside it: it counts what was spent.

# the name under which the site joins
site = {site}

# coordinators that may be called: host, or host:port
coordinators = {coordinators}

# SHA-256 fingerprint of the authority that must vouch for them; empty: the one accepted by `participant enrol`
coordinator_ca = ""

# local solvers that may run here; "pgcd", "closed-form" and "frank-wolfe" give no privacy, see allow_non_private
allowed_solvers = ["dp-pgcd"]

# whether plans without [privacy] may use a table that is not public
allow_non_private = false

# false: each plan is approved by `fedbnsl participant approve`; a list of plan digests: these are; true: all are
auto_approve = false

# fewer sites in a run, or fewer rows in a table, are refused
min_participants = 2
min_rows = 100

[[datasets]]
# the name under which the ledger counts what this table has lost; one table has one id
id = {dataset}

# CSV in UTF-8, or Parquet; relative to this file
path = {path}

# columns that may be used; empty: all
columns = {columns}

# true only for data that anybody may see, such as generated or published tables
public = {public}

# all releases of this table together, over all runs, are (max_epsilon, max_delta)-differentially private
max_epsilon = {max_epsilon}
max_delta = {max_delta}

# a single run may take this epsilon (at max_delta)
max_epsilon_per_run = {max_epsilon_per_run}
"""


def create(
    folder: Path,
    *,
    site: str,
    data: Path,
    dataset_id: str,
    columns: Sequence[str] = (),
    coordinators: Sequence[str] = ("127.0.0.1", "localhost"),
    public: bool = False,
    max_epsilon: float,
    max_delta: float | None = None,
    max_epsilon_per_run: float | None = None,
) -> Policy:
    """Write policy.toml and ledger.db into a folder and register the table.

    Parameters
    ----------
    data
        The table; kept in the policy relative to the folder if it lies within it.
    max_delta
        None: 1 / rows^2.
    max_epsilon_per_run
        None: all of max_epsilon.

    Raises
    ------
    SetupError
        If the folder holds a policy or a ledger already, or a value cannot be used.
    DataError, LedgerError
        If the table or the place cannot be used.
    """
    for name in (POLICY, LEDGER):
        if (folder / name).exists():
            raise SetupError(f"{folder / name} is there already; a site's policy and ledger are never overwritten")
    table = Dataset.read(data, columns=columns)
    durable.make_folder(folder)
    inside = data.resolve().is_relative_to(folder.resolve())
    path = data.resolve().relative_to(folder.resolve()) if inside else data.resolve()
    values: dict[str, object] = {
        "site": site,
        "coordinators": list(coordinators),
        "dataset": dataset_id,
        "path": str(path),
        "columns": list(columns),
        "public": public,
        "max_epsilon": float(max_epsilon),
        "max_delta": 1.0 / table.n_samples**2 if max_delta is None else max_delta,
        "max_epsilon_per_run": float(max_epsilon if max_epsilon_per_run is None else max_epsilon_per_run),
    }
    toml = {key: tomli_w.dumps({"v": value}).partition("=")[2].strip() for key, value in values.items()}
    text = _TEMPLATE.format(ledger=LEDGER, **toml)
    policy = Policy.parse(text, origin=str(folder / POLICY))
    with Ledger.create(folder / LEDGER) as ledger:
        try:
            register(folder, policy, ledger, dataset_id, table)
            durable.write_text(folder / POLICY, text)  # last: a folder without it is not taken for a site's
        except BaseException:
            (folder / LEDGER).unlink()  # made a moment ago, and nothing was spent: the next try starts afresh
            raise
    return policy


def register(
    folder: Path, policy: Policy, ledger: Ledger, dataset_id: str, table: Dataset, *, supersedes: bool = False
) -> None:
    """Enter in the ledger the table that the policy names; see `Ledger.register`."""
    warn_of_own_means(policy, dataset_id, table)
    file = file_identity(folder / policy.dataset(dataset_id).path)
    ledger.register(dataset_id, table.variables, table.X, file=file, supersedes=supersedes)


def warn_of_own_means(policy: Policy, dataset_id: str, table: Dataset) -> None:
    """Warn of columns that seem to be centred by their own means, unless anybody may see the table anyhow."""
    centred = [] if policy.dataset(dataset_id).public else columns_without_mean(table.variables, table.X)
    if centred:
        warnings.warn(
            f"column(s) {listed(centred)}: the mean is zero to rounding, as if the table's own means had been "
            "subtracted. Then every row depends on all records, and a private run does not protect them as promised: "
            "subtract public numbers instead (docs/privacy.md, Centring)",
            DataWarning,
            stacklevel=2,
        )


@contextmanager
def opened(folder: Path, *, accept_backup: bool = False) -> Generator[tuple[Policy, Ledger]]:
    """Policy and ledger of a folder; the ledger belongs to this process until the end.

    Parameters
    ----------
    accept_backup
        Go on with an older copy of the ledger; see `LedgerFile.open`.

    Raises
    ------
    SetupError, LedgerError
        If one of them cannot be used.
    """
    policy = Policy.load(folder / POLICY)
    with Ledger.open(folder / LEDGER, accept_backup=accept_backup) as ledger:
        yield policy, ledger


def read_table(folder: Path, policy: Policy, dataset_id: str, *, max_file_bytes: int | None = None) -> Dataset:
    """The table of a dataset, as the policy allows it to be used; what is odd about it is for the caller to say.

    Raises
    ------
    DataError
        If it cannot be read or used.
    """
    allowed = policy.dataset(dataset_id)
    return Dataset.read(folder / allowed.path, columns=allowed.columns, max_file_bytes=max_file_bytes, warn=False)
