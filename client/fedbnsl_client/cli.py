"""`fedbnsl participant`: the commands of a site."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from fedbnsl.console.shown import shown_lines
from fedbnsl.console.tell import tell
from fedbnsl.errors import DataError, LeftError, SetupError
from fedbnsl.events.emitter import Events, silent
from fedbnsl.events.options import Listeners, takes_listeners
from fedbnsl.events.security_log_cli import audit_log
from fedbnsl.files.durable import OWNER_ONLY
from fedbnsl.web.operators_cli import operators_group
from fedbnsl.web.options import served_at
from fedbnsl_client.agent import cli as agent_cli
from fedbnsl_client.cancellation import Leaving
from fedbnsl_client.secure_aggregation import cli as secure_aggregation_cli
from fedbnsl_client.site import approval_cli, backup_cli, identity_cli, moved_cli, predict_cli, retire_cli
from fedbnsl_client.site.new_site import NewSite
from fedbnsl_client.site.options import (
    FOLDER,
    PATH,
    LinkOptions,
    TableOptions,
    cluster_of,
    column_names,
    described_options,
    gathered,
    takes_blocks,
    takes_engine,
    takes_link,
    takes_table,
)
from fedbnsl_client.site.roles import ROLES

if TYPE_CHECKING:
    from fedbnsl.protocol.messages import RunOffer
    from fedbnsl_client.data.dataset import Dataset
    from fedbnsl_client.site.admission import Admission
    from fedbnsl_client.site.identity import Link

_EPSILON = click.FloatRange(min=1e-6, max=1000)
_DELTA = click.FloatRange(min=1e-100, max=0.5, max_open=True)
_MOSTLY_ALIKE = 0.9


def _named(context: click.Context, parameter: click.Parameter, columns: str | None) -> tuple[str, ...]:
    return tuple(column_names(columns))


@click.group()
def participant() -> None:
    """Take part in a federation with a table that stays at this site."""


for _command in (
    approval_cli.approve,
    identity_cli.request,
    identity_cli.enrol,
    identity_cli.check,
    identity_cli.leave,
    audit_log,
    secure_aggregation_cli.peers,
    moved_cli.moved,
    approval_cli.withdraw,
    agent_cli.agent,
    agent_cli.runs,
    predict_cli.predict,
    retire_cli.retire,
    backup_cli.backup,
    operators_group(ROLES, sign="policy.toml", side="participant"),
):
    participant.add_command(_command)


_data_option = click.option(
    "--data",
    required=True,
    type=PATH,
    help="The site's table: CSV in UTF-8 (commas, semicolons or tabs) with column names in the first line; Parquet, a "
    "file or a folder; or a table.toml that names a query.",
)


@participant.command()
@click.argument("folder", type=PATH)
@gathered(
    "new",
    NewSite,
    click.option("--site", required=True, help="Name of this site: letters, digits, '.', '-', '_'."),
    _data_option,
    click.option(
        "--dataset", "dataset_id", required=True, help="Name under which the ledger counts this table's spending."
    ),
    click.option(
        "--columns",
        callback=_named,
        help="Comma-separated names of the columns (with --dictionary: its variables) that may ever be used.  "
        "[default: all]",
    ),
    *described_options,
    click.option(
        "--coordinator",
        "coordinators",
        multiple=True,
        default=("127.0.0.1", "localhost"),
        show_default=True,
        help="Host, or host:port, that may be called; repeatable.",
    ),
    click.option(
        "--max-epsilon",
        type=_EPSILON,
        default=5.0,
        show_default=True,
        help="What all releases of this table together may cost, over all runs.",
    ),
    click.option(
        "--max-delta",
        type=_DELTA,
        help="The delta of that epsilon; with that of the plans to come, 1e-8 for 'private', all commands tell the "
        "same epsilons.  [default: 1 / rows^2]",
    ),
    click.option("--max-epsilon-per-run", type=_EPSILON, help="What one run may cost.  [default: all of that]"),
    click.option(
        "--max-epsilon-against-all",
        type=_EPSILON,
        help="For plans with privacy.secure_aggregation: what all releases together may cost if the coordinator and "
        "all other sites collude.  [default: such plans are refused]",
    ),
    click.option("--public", is_flag=True, help="Anybody may see this table (generated or published data)."),
)
@takes_engine
def init(folder: Path, new: NewSite, engine: str | None) -> None:
    """Make this site's FOLDER: a commented policy.toml that denies by default, and the ledger of what was spent.

    The table is checked and its content is noted in the ledger: registered again from this folder under another name,
    path or header, it is noticed. A copy with changed rows or values is not, nor are the same people in another table.
    Keep one folder for a table: another one would be another budget. Nothing is sent.

    Rules that have no option here stand in policy.toml with their defaults, among them for whom and against whom a run
    must protect: max_epsilon_per_person, min_honest and max_retries.

    Copies of the data dictionary and the column map are kept in FOLDER, as dictionary.toml and columns.toml, and the
    table is read by them from then on.
    """
    from fedbnsl_client.site import folder as site_folder

    with warnings_on_stderr(), cluster_of(engine) as cluster:
        policy = site_folder.create(folder, new, cluster)
    allowed = policy.dataset(new.dataset_id)
    click.echo(
        f"made {folder / site_folder.POLICY} and {folder / site_folder.LEDGER}: dataset {new.dataset_id} may lose "
        f"epsilon {allowed.max_epsilon:g} at delta {allowed.max_delta:g}"
    )
    if not new.public and new.max_epsilon_against_all is None:
        click.echo(
            "the plan 'private' tells sums over all sites: it needs max_epsilon_against_all in the policy (init "
            "--max-epsilon-against-all), and is refused without"
        )
    click.echo(
        f"next: read the policy; then a certificate: fedbnsl participant request {folder} --federation NAME. What "
        f"comes after it: fedbnsl participant check {folder}"
    )


@participant.command()
@FOLDER
@click.argument("dataset_id", metavar="[DATASET]", required=False)
@click.option(
    "--supersedes",
    is_flag=True,
    help="The table has new content on purpose, or shares records with another dataset, and from then on its budget: "
    "what was spent stays spent.",
)
@click.option(
    "--grows",
    is_flag=True,
    help="The table has new records: those that were there keep what they have spent, and the new ones form a block "
    "with a budget of its own. Refused if one that was there is missing or changed.",
)
@click.option(
    "--other-records",
    is_flag=True,
    help="Many records are like those of another dataset, or new ones like old ones, and are other people's all the "
    "same.",
)
@click.option(
    "--never-used",
    is_flag=True,
    help="You state that the table was never used in a run: a ledger that was restored from a backup cannot know.",
)
@takes_engine
def register(
    folder: Path,
    dataset_id: str | None,
    supersedes: bool,
    grows: bool,
    other_records: bool,
    never_used: bool,
    engine: str | None,
) -> None:
    """Note in FOLDER's ledger the table that its policy names for DATASET: a new one, or one whose content changed.

    DATASET is by default the policy's only one. Where the data dictionary makes one record of each person (an entry of
    kind 'group', within = 'between'), --grows knows records by their persons: one whose values changed keeps what was
    spent, and those that were erased are left out.
    """
    if supersedes and grows:
        raise SetupError("--supersedes gives the whole table one budget, --grows new records one of their own: choose")
    from fedbnsl_client.budget.report import block_lines
    from fedbnsl_client.site import folder as site_folder

    with work_shown(), site_folder.opened(folder) as (policy, ledger), cluster_of(engine) as cluster:
        dataset_id = policy.dataset(dataset_id).id
        table = site_folder.read_table(folder, policy, dataset_id, cluster=cluster)
        for text in table.remarks():
            click.secho(f"warning: {text}", fg="yellow", err=True)
        alike = site_folder.register(
            folder,
            policy,
            ledger,
            dataset_id,
            table,
            supersedes=supersedes,
            grows=grows,
            other_records=other_records,
            never_used=never_used,
        )
        blocks = block_lines(policy.dataset(dataset_id), ledger)
        shared = ledger.registrations.account(dataset_id) - {dataset_id}
        n_left_out = ledger.registrations.n_left_out(dataset_id)
    if alike >= _MOSTLY_ALIKE:
        click.secho(
            f"warning: {alike:.0%} of the records have an equal one in the table: that another table holds some of "
            "them would not be noticed",
            fg="yellow",
            err=True,
        )
    click.echo(f"registered {dataset_id}: {table.n_samples} rows, {len(table.variables)} variables")
    if n_left_out:
        click.secho(
            f"warning: {n_left_out:,} of those that were registered are not in the table: they are left out, and keep "
            "what they have spent if they come back. Whoever is called otherwise now counts as new, with a second "
            "budget: then put the old identifiers back, or use --supersedes",
            fg="yellow",
            err=True,
        )
    for line in blocks:
        click.echo(line)
    if shared:
        click.echo(f"one budget with {', '.join(sorted(shared))}: what either spends counts for all of them")


@participant.command("ledger")
@FOLDER
@click.option(
    "--verify", is_flag=True, help="Recompute the whole chain and say so; a broken one ends with exit code 11."
)
@click.option("--json", "as_json", is_flag=True, help="Print spending and entries as JSON.")
@click.option(
    "--accept-backup",
    is_flag=True,
    help="Go on with an older copy of a ledger that is lost: what is known to be missing from it is charged to it; "
    "where nothing is noted of the lost one, all that its datasets may spend.",
)
@click.option(
    "--accept-newest",
    is_flag=True,
    help="You state that the ledger is the newest, although nothing is noted of it here: it was moved, or the note is "
    "lost.",
)
def ledger_command(folder: Path, verify: bool, as_json: bool, accept_backup: bool, accept_newest: bool) -> None:
    """What FOLDER's datasets have spent and have left, and every entry of the ledger."""
    if accept_backup and accept_newest:
        raise SetupError("a ledger is the newest or a backup: give one of --accept-backup and --accept-newest")
    from fedbnsl_client.budget.report import ledger_as_json, ledger_lines
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site.identity import federation_names

    with site_folder.opened(folder, accept_backup=accept_backup, accept_newest=accept_newest) as (policy, ledger):
        if verify:
            ledger.verify()
        if as_json:
            click.echo(json.dumps(ledger_as_json(policy, ledger), ensure_ascii=False))
            return
        for line in ledger_lines(policy, ledger, federation_names(folder)):
            click.echo(line)
    if verify:
        click.echo("the chain is whole")


@dataclass(frozen=True)
class _TableChoice:
    """Which table a site joins with: one of a folder's policy, or a public one."""

    folder: Path | None
    dataset_id: str | None
    blocks: tuple[int, ...]
    data: Path | None
    site: str | None
    public_data: bool
    identity_folder: Path | None
    engine: str | None

    @property
    def own_folder(self) -> Path | None:
        """Where the site's certificate and security log are."""
        return self.folder or self.identity_folder

    def check(self, options: TableOptions) -> None:
        """Refuse options that do not go together, before anything is read."""
        from fedbnsl_client.budget.policy import Policy
        from fedbnsl_client.site import folder as site_folder

        if self.folder is None:
            if self.blocks:
                raise SetupError("--blocks goes with --policy: the site's ledger knows them")
            if self.data is None or (self.site is None) is (self.identity_folder is None) or not self.public_data:
                raise SetupError(
                    "a table is used under a policy (--policy FOLDER, made by `participant init`), or, if anybody may "
                    "see it, with --data FILE --public-data and --identity FOLDER (on loopback: --site NAME)"
                )
            return
        if self.data or self.site or self.public_data or self.identity_folder:
            raise SetupError(
                "--policy already says which table, under which name; leave out --data, --site, --identity and "
                "--public-data"
            )
        if click.get_current_context().get_parameter_source("min_rows") is click.core.ParameterSource.COMMANDLINE:
            raise SetupError("--min-rows goes with --data; under --policy the policy's own `min_rows` counts")
        if options.dictionary or options.column_map:
            raise SetupError(
                "--dictionary and --column-map go with --data; under --policy, dictionary.toml and columns.toml of the "
                "site's folder count"
            )
        Policy.load(self.folder / site_folder.POLICY)  # a folder that is none is said to be none, before all else


@dataclass(frozen=True)
class _Watched:
    """How a person follows the run."""

    listeners: Listeners
    web: str | None
    web_token: Path | None
    web_certificate: Path | None


@participant.command()
@gathered(
    "table",
    _TableChoice,
    click.option(
        "--policy",
        "folder",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="The site's folder, made by `participant init`: table, site name, limits and ledger come from it.",
    ),
    click.option("--dataset", "dataset_id", help="Which dataset of the policy.  [default: its only one]"),
    takes_blocks,
    click.option(
        "--data",
        type=PATH,
        help="Without --policy: the table, CSV in UTF-8, column names in the first line; Parquet, a file or a folder; "
        "or a table.toml that names a query.",
    ),
    click.option("--site", help="Without --policy: name of this site: letters, digits, '.', '-', '_'."),
    click.option(
        "--public-data",
        is_flag=True,
        help="Without --policy: confirm that anybody may see this table; nothing is counted.",
    ),
    click.option(
        "--identity",
        "identity_folder",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Without --policy: the folder of `participant request` and `enrol`, whose name the site joins under.",
    ),
    takes_engine,
)
@click.option("--out", type=PATH, help="Folder for the learned graph and this site's own refit of it.")
@click.option(
    "--run", "run_name", metavar="NAME", help="Which run of a coordinator with several.  [default: the only one]"
)
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to call a coordinator that does not answer yet.",
)
@gathered(
    "watched",
    _Watched,
    takes_listeners,
    served_at("--web", "Show what leaves this site in a browser", "--web-certificate"),
    click.option(
        "--web-certificate",
        type=click.Path(path_type=Path),
        help="With --web-token: PEM file with a certificate that the site's browsers trust, and its key.",
    ),
)
@takes_link("Plaintext, on loopback only, where no certificate is needed.")
@takes_table
def join(
    link_options: LinkOptions,
    table: _TableChoice,
    out: Path | None,
    run_name: str | None,
    patience_s: float,
    watched: _Watched,
    table_options: TableOptions,
) -> None:
    """Join the run of the coordinator at HOST:PORT and answer its rounds until the end.

    The connection is TLS, under the certificate of the site's folder (see `request` and `enrol`); HOST:PORT is then by
    default the coordinator that enrolled the site. A run that was interrupted at either side goes on with the same
    command.

    With --policy, the run is checked against the site's policy and budget before a record is read, and everything that
    is released is paid for in the ledger first. Without it, the table must be public: what leaves the site is then not
    counted.
    """
    from fedbnsl.console.wording import counted
    from fedbnsl.events.security_log import once_each, unrecorded
    from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name
    from fedbnsl_client.join_run import Told, take_part
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site.admission import GuardedTable, PublicTable

    table.check(table_options)
    # Refused before a record is read; and until the command ends, so that a slow hook does not hold up its last words.
    events = click.get_current_context().with_resource(watched.listeners.listening("fedbnsl-participant"))
    click.get_current_context().with_resource(work_shown())
    link = link_options.link(table.own_folder)
    record = unrecorded if table.own_folder is None else once_each(site_folder.security_log(table.own_folder).enter)
    offer = None if run_name is None else _offered(run_name, link)

    def run(admission: Admission) -> None:
        if link.site not in ("", admission.site):
            raise SetupError(f"the policy's site is {admission.site!r}, the certificate's {link.site!r}")
        with _page(watched, admission.site, link.address, events, table.own_folder) as shown:

            def notice(text: str) -> None:
                tell(shown_lines(text), err=True)
                shown.note(text)

            told = Told(
                notice,
                aside=lambda text: tell(shown_lines(text), err=True),
                record=record,
                emit=events if watched.listeners.are_named or watched.web is not None else silent,
            )
            try:
                graph = take_part(
                    admission, link, patience_s=patience_s, told=told, out=out, offer=offer, leaving=shown.leaving
                )
            except LeftError as error:
                tell(f"{error}. What it sent before stays with the coordinator. {error.remedy}", err=True)
                return
        # Where a variable has several columns, the graph on the wire has an edge for each pair of columns.
        edges = counted(int(graph.dag.sum()), "edge") + (" between columns" if admission.dictionary.has_blocks else "")
        tell(f"the run is over: {edges}" + (f"; kept in {out}" if out else ""))

    if table.folder is not None:
        with site_folder.opened(table.folder) as (policy, ledger), cluster_of(table.engine) as cluster:
            policy.check_coordinator(link.address, authority=link.authority)
            run(
                GuardedTable(
                    table.folder,
                    policy,
                    ledger,
                    table.dataset_id,
                    blocks=table.blocks,
                    columns=table_options.names,
                    max_file_bytes=table_options.max_file_bytes,
                    authority=link.authority,
                    record=record,
                    cluster=cluster,
                )
            )
    elif table.data is not None:
        name = table.site or link.site
        if not is_site_name(name):
            raise SetupError(f"--site {name!r}: use {SITE_NAME_RULE}")
        with _public_table(table.data, table.engine, table_options) as dataset:
            site_folder.refuse_as_public(table.data, dataset, table.own_folder)
            run(PublicTable(name, dataset))


class _Shown(NamedTuple):
    """How a run is shown on the site's page, if there is one."""

    note: Callable[[str], None] = lambda text: None
    leaving: Leaving | None = None


@contextmanager
def _page(watched: _Watched, site: str, coordinator: str, events: Events, folder: Path | None) -> Generator[_Shown]:
    """The site's page, if one is asked for."""
    if watched.web is None:
        if watched.web_token or watched.web_certificate:
            raise SetupError("--web-token and --web-certificate go with --web")
        yield _Shown()
        return
    from fedbnsl_client.observe.site_page import ShownRun, SitePage
    from fedbnsl_client.observe.site_view import SiteView

    view, leaving = SiteView(site, coordinator), Leaving()
    events.listen(view.heard)
    runs = {"": ShownRun(view, leaving)}
    with SitePage(
        watched.web, lambda: runs, token_file=watched.web_token, certificate=watched.web_certificate, folder=folder
    ) as page:
        tell(f"page: {page.port.url}", err=True)
        yield _Shown(view.note, leaving)


@participant.command()
@click.argument("edges", type=PATH)
@_data_option
@click.option("--out", required=True, type=PATH, help="Folder for the refitted network; created if missing.")
@click.option("--json", "as_json", is_flag=True, help="Print the refitted network (the content of lgbn.json) as well.")
@click.option(
    "--intercept/--no-intercept",
    default=None,
    help="Whether regressions have one.  [default: yes with --dictionary, otherwise no]",
)
@takes_table
def refit(
    edges: Path, data: Path, out: Path, as_json: bool, intercept: bool | None, table_options: TableOptions
) -> None:
    """Refit the weights of a learned graph on this site's own table, by least squares.

    EDGES is an edges.csv of a run. Where it has undirected edges, one of the graphs that it stands for is refitted, and
    lgbn.json holds that one. Nothing is sent: the refitted weights and residual variances stay here, in OUT.
    """
    from dataclasses import replace

    from fedbnsl.console.wording import counted, counted_edges
    from fedbnsl.graphs import files as graph_files
    from fedbnsl.graphs.formats import lgbn_json
    from fedbnsl_client.refit import personalise, unknown_in_words

    graph_files.new_graph_folder(out)
    with work_shown():
        dataset = table_options.read(data, warn=False).with_values()
    if intercept is None:
        intercept = bool(dataset.dictionary)
    for text in dataset.remarks(intercept=intercept):
        click.secho(f"warning: {text}", fg="yellow", err=True)
    learned = graph_files.read_edges(edges, dataset.columns.variables)
    fitted = personalise(dataset, dataset.columns.spread(learned.dag), intercept=intercept)
    spread = dataset.columns.spread
    if learned.marks is not None:
        fitted = replace(fitted, marks=spread(learned.marks))
    if learned.undecided is not None:
        fitted = replace(fitted, undecided=spread(learned.undecided))
    graph_files.write_all(fitted, out, columns=dataset.columns, mode=OWNER_ONLY)
    lacking = "" if fitted.is_network else f"{unknown_in_words(fitted, dataset)}; lgbn.json is not written"
    if as_json:
        if lacking:
            raise DataError(lacking, remedy=f"What is known is kept in {out}; leave out --json.")
        click.echo(lgbn_json(fitted), nl=False)
    else:
        edges_in_words = counted_edges(int(learned.dag.sum()), int(learned.undirected.sum()))
        click.echo(f"refitted {edges_in_words} on {counted(dataset.n_samples, 'row')}; kept in {out}")
        if lacking:
            click.echo(lacking)


@contextmanager
def work_shown() -> Generator[None]:
    """Show on standard error how far this site is with its own long work, such as reading a table."""
    from fedbnsl.console.time_left import phases_shown
    from fedbnsl_client.data.watched import watched

    with watched(partial(phases_shown(partial(tell, err=True), err=True), "")):
        yield


def _offered(name: str, link: Link) -> RunOffer:
    """The run of that name at the coordinator."""
    from fedbnsl_client.session import Session

    with Session(link.address, link.credentials) as session:
        _, offers = session.offers()
    found = [one for one in offers if one.name == name]
    if not found:
        names = ", ".join(one.name for one in offers) or "none"
        raise SetupError(f"the coordinator has no run {name!r} for this site; its runs: {names}")
    return found[0]


@contextmanager
def _public_table(data: Path, engine: str | None, options: TableOptions) -> Generator[Dataset]:
    """The table of --data, read here or by the workers of --engine."""
    with cluster_of(engine) as cluster:
        if cluster is None:
            yield options.read(data, warn=False)
            return
        from fedbnsl_client.data import dask_table

        if options.max_file_mib is not None:
            raise SetupError("--max-file-mib is about files that are read here; leave it out with --engine")
        yield dask_table.read(cluster, data, **options.how())


@contextmanager
def warnings_on_stderr(site: str = "") -> Generator[None]:
    """Show what is odd about a table as plain lines, after the name of its site where there are several."""
    from fedbnsl_client.data.checks import DataWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        yield
    for warning in caught:
        click.secho(f"warning: {site and f'{site}: '}{warning.message}", fg="yellow", err=True)
