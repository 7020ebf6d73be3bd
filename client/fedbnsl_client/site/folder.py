"""A site's own folder: its policy and its ledger, made together and never overwritten."""

import hashlib
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedbnsl.console.wording import first_few
from fedbnsl.errors import PolicyRefusal, ResultError, SetupError
from fedbnsl.events.security_log import NAME, SecurityLog, lines
from fedbnsl.files import durable
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.budget import high_water_mark
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.data.checks import DataWarning, Oddity, columns_without_mean
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.fingerprint import file_identity
from fedbnsl_client.data.reading import NO_DICTIONARY, SAME_NAMES, ColumnMap
from fedbnsl_client.site.new_site import NewSite
from fedbnsl_client.site.options import AS_IN_THE_FOLDER, DescribedBy

if TYPE_CHECKING:
    from fedbnsl_client.data.dask_table import Cluster

POLICY = "policy.toml"
LEDGER = "ledger.db"
DICTIONARY = "dictionary.toml"
COLUMNS = "columns.toml"

_TEMPLATE = """\
# What this site allows. Everything that is not allowed here is refused; no message can change it.
# Every refusal names its rule. Edit this file with care, and keep {ledger} beside it: it counts what was spent.

# the name under which the site joins
site = {site}

# coordinators that may be called: host, or host:port
coordinators = {coordinators}

# SHA-256 fingerprint of the authority that must attest them, or a list of these; empty: those accepted by
# `participant enrol`
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

# plans with privacy.secure_aggregation, which tell sums over all sites: a sum hides this site among those that must be
# honest, all but those that may collude with the coordinator or that it may say are lost (privacy.colluding). With
# fewer a plan is refused
min_honest = 2

# more rounds that may be asked again, as the coordinator says that a site is lost (privacy.secure_aggregation_retries),
# are refused. It may say so of sites that are there: with each, one site less may collude
max_retries = 1

# plans without [privacy]: counts of fewer records that have some levels are not told. Which tables are withheld for
# that is told. 0: all are told
least_cell = 0

# true: means and products of columns, which tell how many records have each level and each pair of levels, may tell
# fewer than least_cell. false: a plan whose sums would do so is refused
allow_small_pairs = false

[[datasets]]
# the name under which the ledger counts what this table has lost; one table has one id
id = {dataset}

# CSV in UTF-8, Parquet (a file or a folder), or a table.toml that names a query; relative to this file.
# If dictionary.toml lies beside it, the consortium's data dictionary, it says what the columns are;
# columns.toml says what they are called, in which unit and how levels are written here
path = {path}

# columns that may be used (with dictionary.toml: its variables); empty: all
columns = {columns}

# true only for data that anybody may see, such as generated or published tables
public = {public}

# all releases of this table together, over all runs, are (max_epsilon, max_delta)-differentially private
max_epsilon = {max_epsilon}
max_delta = {max_delta}

# a single run may take this epsilon (at max_delta)
max_epsilon_per_run = {max_epsilon_per_run}

# a person may have a record at other sites, too: what all releases of all of them together may cost somebody at as many
# sites as the plan says (privacy.sites_per_person), who are taken to spend as much as this one; at max_delta
# max_epsilon_per_person = {max_epsilon}  # the default: max_epsilon

# false: after runs counted by Gaussian differential privacy, as those of all ready plans are, which may spend a little
# more, plans that are counted by zCDP (`fedbnsl privacy price` says which) are refused. true: both kinds may follow
# each other; everything counts as zCDP
mixed_releases = false

# plans with privacy.secure_aggregation let the sites share the noise: what all releases together may cost at max_delta
# if the coordinator and ALL other sites collude; at least max_epsilon. Without this rule such plans are refused.
{max_epsilon_against_all}
"""


def create(folder: Path, new: NewSite, cluster: "Cluster | None" = None) -> Policy:
    """Write policy.toml and ledger.db into a folder and register the table, which workers of a cluster may read.

    Raises SetupError if the folder holds a policy or a ledger already, or a value cannot be used; DataError or
    LedgerError if the table or the place cannot be used.
    """
    for name in (POLICY, LEDGER):
        if (folder / name).exists():
            raise SetupError(f"{folder / name} is there already; a site's policy and ledger are never overwritten")
    dataset_id, data = new.dataset_id, new.data
    copies = _copies(folder, new)
    what, mapping = described(folder, new.dictionary, new.column_map)
    table = _read(data, cluster, columns=new.columns, dictionary=what, mapping=mapping, guarded=not new.public)
    for text in table.remarks():
        warnings.warn(text, DataWarning, stacklevel=2)
    durable.make_folder(folder)
    inside = data.resolve().is_relative_to(folder.resolve())
    path = data.resolve().relative_to(folder.resolve()) if inside else data.resolve()
    per_run = new.max_epsilon if new.max_epsilon_per_run is None else new.max_epsilon_per_run
    values: dict[str, object] = {
        "site": new.site,
        "coordinators": list(new.coordinators),
        "dataset": dataset_id,
        "path": str(path),
        "columns": list(new.columns),
        "public": new.public,
        "max_epsilon": float(new.max_epsilon),
        "max_delta": 1.0 / table.n_samples**2 if new.max_delta is None else new.max_delta,
        "max_epsilon_per_run": float(per_run),
    }
    against_all = "# max_epsilon_against_all = 15.0"
    if new.max_epsilon_against_all is not None:
        against_all = f"max_epsilon_against_all = {float(new.max_epsilon_against_all)}"
    toml = {key: tomli_w.dumps({"v": value}).partition("=")[2].strip() for key, value in values.items()}
    text = _TEMPLATE.format(ledger=LEDGER, max_epsilon_against_all=against_all, **toml)
    policy = Policy.parse(text, origin=str(folder / POLICY))
    for one in own_means(policy, dataset_id, table):
        warnings.warn(one.text, DataWarning, stacklevel=2)
    for first, known in high_water_mark.folders_with(data).items():
        warnings.warn(_known_file(data, first, known), DataWarning, stacklevel=2)
    with Ledger.create(folder / LEDGER) as ledger:
        try:
            file = file_identity(folder / path)
            ledger.registrations.register(dataset_id, table.variables, table.X, persons=table.whose, file=file)
            for name, content in copies.items():
                durable.write_text(folder / name, content)
            durable.write_text(folder / POLICY, text)  # last: without it, the folder is not a site's folder
        except BaseException:
            # New, and nothing was spent: the next attempt starts over.
            high_water_mark.file_of(ledger.ledger_id).unlink(missing_ok=True)
            for name in (LEDGER, *copies):
                (folder / name).unlink(missing_ok=True)
            raise
    security_log(folder).enter("registered", dataset=dataset_id)
    _note_policy(folder)
    return policy


def _copies(folder: Path, new: NewSite) -> dict[str, str]:
    """The content of the files to copy into a folder, by their names there.

    Raises SetupError if one cannot be read, or the folder has another one.
    """
    copies: dict[str, str] = {}
    for name, given in ((DICTIONARY, new.dictionary), (COLUMNS, new.column_map)):
        if given is None:
            continue
        try:
            content = given.read_text(encoding="utf-8")
            there = (folder / name).read_text(encoding="utf-8") if (folder / name).exists() else None
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(f"{given} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if there is None:
            copies[name] = content
        elif there != content:
            raise SetupError(
                f"{folder / name} is there already, and is not {given}",
                remedy="Remove one of the two, or leave the option out.",
            )
    return copies


def described(
    folder: Path | None, dictionary: Path | None = None, column_map: Path | None = None
) -> tuple[Dictionary, ColumnMap]:
    """The data dictionary of a site and what is different there: from these files, otherwise from the folder's.

    Raises SetupError if columns are mapped without a dictionary; PlanError or DataError if a file cannot be used.
    """
    if folder is not None:
        dictionary, column_map = (
            given or (folder / name if (folder / name).exists() else None)
            for given, name in ((dictionary, DICTIONARY), (column_map, COLUMNS))
        )
    if dictionary is None:
        if column_map is not None:
            raise SetupError(
                f"{column_map} says what is different from the data dictionary here, and there is none",
                remedy="Give the consortium's dictionary.toml as well (--dictionary).",
            )
        return NO_DICTIONARY, SAME_NAMES
    return Dictionary.load(dictionary), SAME_NAMES if column_map is None else ColumnMap.load(column_map)


def security_log(folder: Path) -> SecurityLog:
    """What the site did, and what was asked of it; stays in its folder."""
    return SecurityLog(folder / NAME)


def _known_file(data: Path, first: str, dataset_id: str) -> str:
    return (
        f"{data} is the table of dataset {dataset_id!r} of the site folder {first}, whose ledger counts by "
        "itself: two folders are two budgets, and what both spend adds up. If the records are the same, use that "
        "folder and remove this one"
    )


def refuse_as_public(data: Path, table: Dataset, own_folder: Path | None) -> None:
    """Refuse to use without a policy a table that a site's folder holds, and does not call public.

    Its file is looked for in all folders of this user, its content in `own_folder`, if that has a ledger. Raises
    PolicyRefusal, naming the folder; LedgerError if a note or the ledger cannot be read.
    """
    held = list(high_water_mark.folders_with(data).items())
    if own_folder is not None and (own_folder / LEDGER).exists():
        with Ledger.open(own_folder / LEDGER) as ledger:
            known = ledger.registrations.known_as(table.variables, table.X, file_identity(data))
        held += [(str(own_folder), dataset_id) for dataset_id in known]
    for folder, dataset_id in held:
        policy = Path(folder, POLICY)
        known_here = {one.id: one for one in Policy.load(policy).datasets} if policy.exists() else {}
        if dataset_id not in known_here or not known_here[dataset_id].public:
            raise PolicyRefusal(
                f"{data} is the table of dataset {dataset_id!r} of the site folder {folder}, which does not call it "
                "public: what is sent would not be counted",
                remedy=f"Join with --policy {folder}. Nothing of the table was sent.",
            )


def register(
    folder: Path,
    policy: Policy,
    ledger: Ledger,
    dataset_id: str,
    table: Dataset,
    *,
    supersedes: bool = False,
    grows: bool = False,
    other_records: bool = False,
    never_used: bool = False,
) -> float:
    """Enter in the ledger the table that the policy names; see `Registrations.register`, also for what is returned."""
    file = file_identity(folder / policy.dataset(dataset_id).path)
    alike = ledger.registrations.register(
        dataset_id,
        table.variables,
        table.X,
        persons=table.whose,
        file=file,
        supersedes=supersedes,
        grows=grows,
        other_records=other_records,
        never_used=never_used,
    )
    stated = {"never_used": True} if never_used else {}
    security_log(folder).enter(
        "registered", dataset=dataset_id, supersedes=supersedes, grows=grows, other_records=other_records, **stated
    )
    return alike


def own_means(policy: Policy, dataset_id: str, table: Dataset) -> tuple[Oddity, ...]:
    """Columns that seem to be centred by their own means, unless the table is public."""
    centred = [] if policy.dataset(dataset_id).public else columns_without_mean(table.variables, table.X)
    text = (
        f"column(s) {first_few(centred)}: the mean is zero to rounding, as if the table's own means had been "
        "subtracted. Then every row depends on all records, and a private run does not protect them as promised: "
        "subtract public numbers instead (docs/explanation/privacy.md, Centring)"
    )
    return (Oddity(None, text),) if centred else ()


@contextmanager
def opened(
    folder: Path, *, accept_backup: bool = False, accept_newest: bool = False
) -> Generator[tuple[Policy, Ledger]]:
    """Policy and ledger of a folder, for one thread; see `LedgerFile.open` for what may be accepted.

    Raises SetupError or LedgerError if one of them cannot be used.
    """
    policy = Policy.load(folder / POLICY)
    caps = {one.id: (one.cap, one.cap_against_all) for one in policy.datasets}
    with Ledger.open(folder / LEDGER, accept_backup=accept_backup, accept_newest=accept_newest, caps=caps) as ledger:
        _note_policy(folder)
        if accept_backup:
            security_log(folder).enter("backup accepted")
        if accept_newest:
            security_log(folder).enter("stated to be the newest")
        yield policy, ledger


def _note_policy(folder: Path) -> None:
    """Enter the policy in the security log if it is not the one that was entered last; people edit it by hand."""
    digest = hashlib.sha256((folder / POLICY).read_bytes()).hexdigest()
    known = ""
    with suppress(ResultError):  # no log yet, or one that cannot be read: it is entered then
        for line in lines(folder / NAME):
            known = line.entry.get("policy", known)
    if digest != known:
        security_log(folder).enter("policy changed" if known else "policy", policy=digest)


def _read(
    path: Path,
    cluster: "Cluster | None",
    *,
    max_file_bytes: int | None = None,
    **how: Any,
) -> Dataset:
    """A table, read here or by the workers of a cluster; the caller reports what is odd about it."""
    if cluster is None:
        return Dataset.read(path, max_file_bytes=max_file_bytes, warn=False, **how)
    from fedbnsl_client.data import dask_table  # here: it needs an extra

    if max_file_bytes is not None:
        raise SetupError("--max-file-mib is about files that are read here; leave it out with --engine")
    return dask_table.read(cluster, path, **how)


def read_table(
    folder: Path,
    policy: Policy,
    dataset_id: str,
    *,
    cluster: "Cluster | None" = None,
    max_file_bytes: int | None = None,
    described_by: DescribedBy = AS_IN_THE_FOLDER,
) -> Dataset:
    """The table of a dataset, as the policy allows it to be used; the caller reports what is odd about it.

    It is read by the folder's dictionary and column map, or by others; here, or by the workers of a cluster. Raises
    DataError if it cannot be read or used.
    """
    allowed = policy.dataset(dataset_id)
    dictionary, mapping = described(folder, *described_by)
    table = _read(
        folder / allowed.path,
        cluster,
        columns=allowed.columns,
        dictionary=dictionary,
        mapping=mapping,
        max_file_bytes=max_file_bytes,
        guarded=not allowed.public,
    )
    return replace(table, odd=(*table.odd, *own_means(policy, dataset_id, table)))
