"""`fedbnsl data | simulate | demo | evaluate`: experiments and demonstrations."""

from __future__ import annotations

import json
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.errors import SchemaMismatchError, SetupError
from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl.plan.ready_files import DEFAULT_PLAN
from fedbnsl_client.data.cli import data
from fedbnsl_client.site.options import column_names, columns_option, min_rows_option
from fedbnsl_workbench.option_types import Finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbnsl.plan.plan import Plan
    from fedbnsl_workbench.scoring.reference import Reference


# What the settings of the private demo were tuned for: noise averages out over sites.
_PRIVATE_SITES = 8
_MIN_ROWS = 20

_PATH = click.Path(path_type=Path)

_no_hidden_causes_option = click.option(
    "--no-hidden-causes",
    is_flag=True,
    help="Show edges as they are if no common cause of two variables is missing from the tables.",
)
_truth_option = click.option(
    "--truth",
    type=_PATH,
    help="CSV with columns source,target: the graph to score against.  [default: DATA/truth.csv if there]",
)


@data.command()
@click.option("--nodes", type=click.IntRange(2, 65_535), default=20, show_default=True, help="Variables (d).")
@click.option("--edges", type=Finite(min=0), default=20.0, show_default=True, help="Expected number of edges.")
@click.option("--sites", type=click.IntRange(1, 10_000), default=3, show_default=True, help="Sites (P).")
@click.option("--rows", type=click.IntRange(min=1), default=5000, show_default=True, help="Rows of each site.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=2, show_default=True, help="The same seed gives the same bytes."
)
@click.option(
    "--heterogeneous",
    "weight_variance",
    type=Finite(min=0),
    default=0.0,
    show_default=True,
    metavar="VARIANCE",
    help="Draw each site's edge weights around the common ones with this variance.",
)
@click.option("--out", required=True, type=_PATH, help="Folder for site-1.csv, ... and truth.csv.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def synth(
    nodes: int, edges: float, sites: int, rows: int, seed: int, weight_variance: float, out: Path, as_json: bool
) -> None:
    """Draw tables from a random linear Gaussian network.

    Erdos-Renyi graph, weights uniform on [-2, -0.5] and [0.5, 2], unit noise. truth.csv holds source,target,weight.
    """
    from fedbnsl_workbench.tables.folder import write_federation
    from fedbnsl_workbench.tables.synthetic import synthesise

    if edges > nodes * (nodes - 1) / 2:
        raise click.BadParameter(f"{nodes} nodes have at most {nodes * (nodes - 1) // 2} edges", param_hint="--edges")
    federation = synthesise(nodes, edges, sites, rows, seed, weight_variance=weight_variance)
    write_federation(federation, out)
    n_edges = int((federation.W != 0).sum())
    if as_json:
        click.echo(json.dumps({"folder": str(out), "sites": sites, "rows": rows, "edges": n_edges, "seed": seed}))
    else:
        click.echo(f"wrote {sites} tables of {rows} rows x {nodes} variables, and a truth of {n_edges} edges, to {out}")


@data.command("split")
@click.argument("file", type=_PATH)
@click.option("--sites", type=click.IntRange(min=1), default=3, show_default=True, help="Parts.")
@click.option("--contiguous", is_flag=True, help="Consecutive blocks of rows, in the order of the file.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Shuffle the rows with this seed first."
)
@click.option(
    "--group",
    metavar="COLUMN",
    help="Keep rows with equal cells in this column, such as those of a patient, at one site.",
)
@click.option("--out", required=True, type=_PATH, help="Folder for site-1.csv, ...")
@click.option("--json", "as_json", is_flag=True, help="Print the rows of each part as JSON.")
@click.pass_context
def split_command(
    context: click.Context,
    file: Path,
    sites: int,
    contiguous: bool,
    seed: int,
    group: str | None,
    out: Path,
    as_json: bool,
) -> None:
    """Split one CSV table over several sites, every row exactly once, shuffled unless --contiguous."""
    from fedbnsl_client.cli import warnings_on_stderr
    from fedbnsl_workbench.tables.folder import split

    if contiguous and context.get_parameter_source("seed") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--contiguous keeps the order of the rows; it cannot go with --seed")
    with warnings_on_stderr():
        sizes = split(file, sites, out, seed=None if contiguous else seed, group=group or "")
    if as_json:
        click.echo(json.dumps({"folder": str(out), "rows": sizes}))
    else:
        click.echo(f"wrote {len(sizes)} tables to {out}: " + ", ".join(f"{s} {n} rows" for s, n in sizes.items()))


@data.command()
@click.option(
    "--with",
    "troubles",
    multiple=True,
    metavar="TROUBLE",
    help="What the tables have, of the list above; again for each.  [default: all but the last two]",
)
@click.option("--seed", type=click.IntRange(min=0), default=2, show_default=True, help="The same seed, the same bytes.")
@click.option("--out", required=True, type=_PATH, help="Folder for tables, dictionary.toml, columns and truth.csv.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def hospital(troubles: tuple[str, ...], seed: int, out: Path, as_json: bool) -> None:
    """Draw three tables as hospitals have them, with a known truth: 200, 3000 and 12000 rows of 12 variables.

    Means far from zero, other units, shifts between sites, kinds, spellings and missing values can be had one by one.
    dictionary.toml says what the variables are, site-2.columns.toml what is different at the second site.

    TROUBLE is nothing, means, units, shifts, binary, ordinal, nominal, count, spellings, missing (one cell in a tenth
    of the rows), row-of-999s, missing-cells (a tenth of all cells) or unsaid-999s (a row that no column file names).
    """
    from fedbnsl_workbench.tables.hospital import chosen_troubles, draw, write_hospitals

    hospitals = draw(seed, chosen_troubles(troubles))
    paths = write_hospitals(hospitals, out)
    rows, n_edges = [len(site.rows) for site in hospitals.sites], int((hospitals.W != 0).sum())
    if as_json:
        click.echo(json.dumps({"folder": str(out), "rows": rows, "edges": n_edges, "seed": seed}))
    else:
        said = ", ".join(map(str, rows))
        click.echo(
            f"wrote {len(paths)} tables of {said} rows x {len(hospitals.variables)} variables, their dictionary.toml "
            f"and a truth of {n_edges} edges, to {out}"
        )


@click.command()
@takes_plan()
@click.option("--data", "folder", required=True, type=_PATH, help="Folder with site-1.csv, site-2.csv, ...")
@columns_option
@_truth_option
@click.option("--out", type=_PATH, help="Run folder.  [default: runs/<plan name>-<UTC time>]")
@click.option(
    "--public-data", is_flag=True, help="Confirm that anybody may see the tables: a private plan needs it here."
)
@min_rows_option
@click.option("--noise-seed", type=click.IntRange(min=0), help="Make a private plan's noise reproducible.")
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Sites that compute at the same time; it pays from about a hundred variables on. The results are the same.",
)
@_no_hidden_causes_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def simulate(
    choice: PlanChoice,
    folder: Path,
    columns: str | None,
    truth: Path | None,
    out: Path | None,
    public_data: bool,
    min_rows: int,
    noise_seed: int | None,
    threads: int,
    no_hidden_causes: bool,
    as_json: bool,
) -> None:
    """Run PLAN over all tables of a folder in this one process; there are as many sites as tables.

    The code is that of a real network, and the results are the same, bit for bit; only the messages stay in memory.
    Each site's table must fit in memory at the same time. A private plan is simulated without ledgers and guarantees
    nothing. While it searches, the first Ctrl-C ends the search with the best graph so far, and the result says so; a
    second one interrupts.
    """
    from rich.console import Console

    from fedbnsl_client.cli import warnings_on_stderr, work_shown
    from fedbnsl_client.data.site_files import site_files
    from fedbnsl_server.observe.terminal import RunDisplay
    from fedbnsl_server.store.run_folder import default_folder, refuse_existing_run
    from fedbnsl_workbench.plan_settings import for_sites, refuse_another_number
    from fedbnsl_workbench.repeat import command_kept
    from fedbnsl_workbench.simulate import simulate as run_simulation
    from fedbnsl_workbench.tables.folder import described_by, tables_for

    started = time.perf_counter()
    plan = _over_columns(choice.load(), columns)
    if plan.privacy is not None and not public_data:
        raise SetupError(
            "a simulation counts nothing in a ledger; with a private plan, confirm by --public-data that the tables "
            "are generated or published, or run real sites (fedbnsl demo --private, fedbnsl participant join --policy)"
        )
    if plan.privacy is None and noise_seed is not None:
        raise SetupError("--noise-seed: the plan has no [privacy], and so no noise")
    if plan.privacy is not None and choice.epsilon is None:
        click.echo(f"epsilon {plan.privacy.epsilon:g}, as the plan says: --epsilon takes another budget", err=True)
    out = out or default_folder(plan.name)
    refuse_existing_run(out)
    files = site_files(folder)
    refuse_another_number(choice, len(files))
    plan = for_sites(described_by(plan, folder, given=choice.dictionary), len(files), files)
    if plan.privacy is not None and plan.preparation is not None:
        plan.require_ranges(len(plan.column_names))  # before a table is read
    with warnings_on_stderr(), work_shown():
        tables = tables_for(plan, files, min_rows=min_rows)
    reference = _reference(truth, folder, next(iter(tables.values())).columns.variables)
    title = f"{plan.name}: {len(files)} sites in one process"
    again = ["simulate", "plan.toml", *(["--public-data"] if plan.privacy else []), *_fewer_rows(min_rows)]
    again += [] if noise_seed is None else [f"--noise-seed={noise_seed}"]
    with RunDisplay(title, Console(stderr=True)) as display, command_kept(out, again, folder):
        result = run_simulation(
            plan, tables, out, watch=display.show, noise_seed=noise_seed, threads=threads, on_enough=display.say
        )
    _print_result(result, out, reference, started=started, as_json=as_json, no_hidden_causes=no_hidden_causes)


@click.command()
@click.option(
    "--data",
    "folder",
    type=_PATH,
    help="Folder with site-1.csv, ...  [default: generated: 20 variables, 5000 rows a site]",
)
@columns_option
@_truth_option
@takes_plan(as_option=f"Ready plan, or a file.  [default: {DEFAULT_PLAN}, private: private-steps]")
@click.option(
    "--sites", type=click.IntRange(1, 64), help="Participants, when data is generated.  [default: 3, private: 8]"
)
@click.option("--seed", type=click.IntRange(min=0), default=2, show_default=True, help="Seed of generated data.")
@click.option(
    "--private",
    is_flag=True,
    help="Differential privacy: every site gets a policy and a ledger. Without --epsilon: that of the plan.",
)
@min_rows_option
@click.option("--out", type=_PATH, help="Run folder.  [default: runs/demo-<UTC time>]")
@click.option("--web", metavar="HOST:PORT", help="Show the run in a browser there; port 0 takes a free one.")
@_no_hidden_causes_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.pass_context
def demo(
    context: click.Context,
    folder: Path | None,
    columns: str | None,
    truth: Path | None,
    choice: PlanChoice,
    sites: int | None,
    seed: int,
    private: bool,
    min_rows: int,
    out: Path | None,
    web: str | None,
    no_hidden_causes: bool,
    as_json: bool,
) -> None:
    """Run a whole federation on this machine: a coordinator and its participants as separate processes over gRPC.

    Each participant reads its own table only and keeps its personalised weights in RUN/sites/<site>. Ctrl-C ends all
    processes; the run folder stays readable. While the coordinator searches, the first Ctrl-C ends the search alone.
    With --private, the noise comes from the operating system, each site's policy and ledger are in
    RUN/sites/<site>/guard, and the summary says what was spent; without it, the tables are taken as public.

    --private alone runs the paper's private method, DP-PGCD; --plan private is more accurate at the same epsilon.
    """
    if folder is not None and sites is not None:
        raise click.UsageError("--sites goes with generated data; the tables in --data say how many sites there are")
    if private and min_rows != _MIN_ROWS:
        raise click.UsageError("--min-rows goes without --private, whose sites have policies with their own min_rows")
    from fedbnsl_workbench.fork_server import begin_to_load

    forked = begin_to_load()  # while this process loads, too

    from rich.console import Console
    from rich.text import Text

    from fedbnsl_client.cli import warnings_on_stderr, work_shown
    from fedbnsl_client.data.columns import choose
    from fedbnsl_client.data.site_files import site_files
    from fedbnsl_server.observe.terminal import RunDisplay
    from fedbnsl_server.store.run_folder import default_folder, refuse_existing_run
    from fedbnsl_workbench import localnet
    from fedbnsl_workbench.plan_settings import for_sites, refuse_another_number
    from fedbnsl_workbench.repeat import command_kept
    from fedbnsl_workbench.tables.folder import described_by, ranges_of_generated, write_federation
    from fedbnsl_workbench.tables.synthetic import synthesise

    started = time.perf_counter()
    choice = choice.otherwise("private-steps" if private else DEFAULT_PLAN)
    plan = choice.load()
    if private != (plan.privacy is not None):
        raise SetupError(
            "the plan has [privacy]: add --private" if plan.privacy else "--private needs a plan with [privacy]"
        )
    plan = _over_columns(plan, columns)
    n_generated = sites or (_PRIVATE_SITES if private else 3)
    refuse_another_number(choice, n_generated if folder is None else len(site_files(folder)))
    out = out or default_folder("demo")
    refuse_existing_run(out)
    seeds: dict[str, int] = {}
    again = ["demo", "--plan", "plan.toml", *(["--private"] if private else []), *_fewer_rows(min_rows)]
    tables, federation_names = folder, tuple[str, ...]()
    console = Console(stderr=True)
    if folder is None:
        folder = out / "data"
        seeds = {"data": seed}
        federation = synthesise(20, 20, n_generated, 5000, seed)
        federation_names = federation.variables
        choose(Path("generated tables"), federation_names, plan.variables)
        write_federation(federation, folder)
        if private and plan.preparation is not None and not plan.dictionary:
            plan = plan.with_dictionary(ranges_of_generated(federation_names), origin="generated tables")
        again += [f"--sites={len(federation.tables)}", f"--seed={seed}"]
    files = site_files(folder)
    plan = for_sites(described_by(plan, folder, given=choice.dictionary), len(files), files)
    if private and plan.preparation is not None:
        plan.require_ranges(len(plan.column_names))  # before a table is read
    if tables is None:
        variables = plan.variables or federation_names
    else:
        with warnings_on_stderr(), work_shown():  # a private site warns when its folder is made
            variables = _variables_of(files, plan, warn=not private, min_rows=min_rows)
    reference = _reference(truth, folder, variables)
    text = Text(f"{len(files)} participants and a coordinator as separate processes; run folder {out}")
    console.print(text, soft_wrap=True)
    title = f"{plan.name}: {len(files)} sites over loopback gRPC"
    threading.Thread(target=_load_summary, name="summary", daemon=True).start()  # while the run goes on
    with RunDisplay(title, console) as display, command_kept(out, again, tables, spends_budget=private):
        localnet.run(
            plan,
            files,
            out,
            viewer=localnet.Viewer(display.show, display.say, web),
            seeds=seeds,
            min_rows=min_rows,
            own_state=tables is None,
            forked=forked,
        )
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    if private:
        result["ledgers"] = localnet.read_ledgers(out, list(files))
    _print_result(result, out, reference, started=started, as_json=as_json, no_hidden_causes=no_hidden_causes)


def _fewer_rows(min_rows: int) -> list[str]:
    """The option for another number of rows than the default."""
    return [] if min_rows == _MIN_ROWS else [f"--min-rows={min_rows}"]


def _variables_of(files: Mapping[str, Path], plan: Plan, *, warn: bool, min_rows: int) -> tuple[str, ...]:
    """The variables of a run over these tables, which are read and refused before any process is started.

    The participants read them again, and the first to fail would be the only one named.
    """
    from fedbnsl_server.sites.roster import compare_variables
    from fedbnsl_workbench.tables.folder import tables_for

    tables = tables_for(plan, files, warn=warn, min_rows=min_rows)
    first = next(iter(tables.values()))
    for site, table in tables.items():
        try:
            compare_variables(first.variables, table.variables)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(f"{site}: {error}") from None
    return first.columns.variables


def _over_columns(plan: Plan, columns: str | None) -> Plan:
    """The plan over the columns that --columns names."""
    names = column_names(columns)
    if names and len(set(names)) < max(len(names), 2):
        raise SetupError(f"--columns {columns}: expected at least two names, each of them once")
    if names and plan.variables and set(names) != set(plan.variables):
        raise SetupError(
            f"--columns names other columns than the plan, whose `variables` are {', '.join(plan.variables)}; omit "
            "--columns, or take `variables` out of the plan"
        )
    return plan.with_settings(variables=names) if names and not plan.variables else plan


def _reference(truth: Path | None, folder: Path, variables: Sequence[str]) -> Reference | None:
    """The graph to score against; read before the run, so that a bad file does not cost a run."""
    from fedbnsl_workbench.scoring.reference import read_reference

    beside = folder / "truth.csv"
    path = truth or (beside if beside.exists() else None)
    return None if path is None else read_reference(path, variables)


def _load_summary() -> None:
    """Load what `_print_result` needs."""
    for room in ("report.summary", "scoring.class_scores", "scoring.evaluation"):
        import_module(f"fedbnsl_workbench.{room}")


def _print_result(
    result: Mapping[str, Any],
    out: Path,
    reference: Reference | None,
    *,
    started: float,
    as_json: bool,
    no_hidden_causes: bool,
) -> None:
    """What a run has come to, for people or for programs."""
    from rich.console import Console

    from fedbnsl.graphs.graph import is_acyclic
    from fedbnsl_workbench.report.summary import print_summary
    from fedbnsl_workbench.scoring.class_scores import class_scores
    from fedbnsl_workbench.scoring.evaluation import known_in, learned_graph
    from fedbnsl_workbench.scoring.metrics import score

    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
        return
    scores = of_classes = None
    if reference is not None:
        learned = reference.of_common(learned_graph(result))
        scores = score(learned, reference.edges)
        if is_acyclic(reference.edges):
            known = known_in(out, result).of_common(reference.common)
            true = known.class_of(reference.edges, reference.directed)
            of_classes = class_scores(known.class_of(learned), true)
    print_summary(
        result,
        out,
        Console(),
        scores=scores,
        of_classes=of_classes,
        left_out=reference.left_out if reference else "",
        no_hidden_causes=no_hidden_causes,
        seconds=time.perf_counter() - started,
    )


@click.command()
@click.argument("run", type=_PATH)
@click.option(
    "--truth",
    required=True,
    type=_PATH,
    help="CSV with columns source,target, which may have cycles; or marks, as the files pag* of a run have them.",
)
@click.option("--hidden", metavar="NAMES", help="Variables of the truth, with commas, that no table has.")
@click.option(
    "--threshold",
    type=Finite(min=0),
    help="Cut the raw weights W at this absolute value instead of taking the run's own graph.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def evaluate(run: Path, truth: Path, hidden: str | None, threshold: float | None, as_json: bool) -> None:
    """Score the graph of the run folder RUN against a reference graph.

    The empty graph and random DAGs with as many edges are scored, too: a score that does not beat theirs says
    nothing. If the reference names variables that the run lacks, the subgraphs induced on the variables in common are
    scored.

    Where the data tell directions only up to equivalent graphs (graph_class cpdag), the classes are compared: the SHD
    counts pairs of variables that are not joined, joined without a direction, or directed as in the reference's class,
    and the SID is given as its least and largest value over the run's class.

    SHD: edges that must be added, removed or reversed to get the reference; 0 is best.

    SID: ordered pairs of variables for which the graph gives a wrong effect of one on the other; 0 is best.

    TPR: share of the reference's edges that were found with their direction; 1 is best.

    FDR: share of the found edges that are wrong or reversed; 0 is best.

    Marks that hold if common causes may be hidden are scored where the run tells them: how many of them are right, and
    how many of the reference's were found, beside what the class says. Variables of the reference that the run lacks
    count as hidden there. A reference of marks is compared with marks alone.
    """
    from rich.console import Console

    from fedbnsl_workbench.scoring.evaluation import evaluate as evaluate_run
    from fedbnsl_workbench.scoring.evaluation import print_report
    from fedbnsl_workbench.working import working

    with working("scoring"):
        report = evaluate_run(run, truth, tau=threshold, hidden=column_names(hidden, option="--hidden"))
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        print_report(report, Console())
