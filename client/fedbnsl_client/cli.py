"""`fedbnsl participant`: the commands of a site."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbnsl.errors import SetupError

if TYPE_CHECKING:
    from fedbnsl_client.dataset import Dataset

_DATA = click.Path(path_type=Path)


@click.group()
def participant() -> None:
    """Take part in a federation with a table that stays at this site."""


def _table_options(command: click.decorators.FC) -> click.decorators.FC:
    options = [
        click.option("--columns", help="Comma-separated names of the columns to use.  [default: all]"),
        click.option(
            "--min-rows",
            type=click.IntRange(min=2),
            default=20,
            show_default=True,
            help="Refuse a table with fewer rows.",
        ),
        click.option(
            "--max-file-mib",
            type=click.IntRange(min=1),
            default=1024,
            show_default=True,
            help="Refuse a larger file, in MiB.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


_data_option = click.option(
    "--data",
    required=True,
    type=_DATA,
    help="The site's table: CSV in UTF-8, commas, column names in the first line.",
)


@participant.command()
@click.argument("coordinator", metavar="HOST:PORT")
@_data_option
@click.option("--site", required=True, help="Name of this site: letters, digits, '.', '-', '_'.")
@click.option(
    "--insecure", is_flag=True, help="Plaintext, on loopback only. TLS is not there yet: this flag is needed."
)
@click.option("--out", type=_DATA, help="Folder for the learned graph and this site's own refit of it.")
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to call a coordinator that does not answer yet.",
)
@_table_options
def join(
    coordinator: str,
    data: Path,
    site: str,
    insecure: bool,
    out: Path | None,
    patience_s: float,
    columns: str | None,
    min_rows: int,
    max_file_mib: int,
) -> None:
    """Join the run of the coordinator at HOST:PORT and answer its rounds until the end.

    The table is checked before anything is sent. What leaves the site: column names, row count, and the sparse weights
    of each round (without differential privacy, which this version does not have yet).
    """
    from fedbnsl.messages import SITE_NAME_RULE, is_site_name
    from fedbnsl_client.run_participant import take_part

    if not insecure:
        raise SetupError("TLS is not part of this version; pass --insecure to call in plaintext on loopback")
    if not is_site_name(site):
        raise SetupError(f"--site {site!r}: use {SITE_NAME_RULE}")
    dataset = _read(data, columns, min_rows, max_file_mib)
    graph = take_part(
        site,
        dataset,
        address=coordinator,
        patience_s=patience_s,
        notice=lambda text: click.echo(text, err=True),
        out=out,
    )
    click.echo(f"the run is over: {graph.nnz} edges" + (f"; kept in {out}" if out else ""))


@participant.command()
@click.argument("edges", type=_DATA)
@_data_option
@click.option("--out", required=True, type=_DATA, help="Folder for the refitted network; created if missing.")
@click.option("--json", "as_json", is_flag=True, help="Print the refitted network (the content of lgbn.json) as well.")
@_table_options
def refit(
    edges: Path, data: Path, out: Path, as_json: bool, columns: str | None, min_rows: int, max_file_mib: int
) -> None:
    """Refit the weights of a learned graph on this site's own table, by least squares without intercept.

    EDGES is an edges.csv of a run. Nothing is sent: the refitted weights and residual variances stay here, in OUT.
    """
    from fedbnsl import graph_files
    from fedbnsl.graph_formats import lgbn_json
    from fedbnsl_client.refit import personalise

    graph_files.new_graph_folder(out)
    dataset = _read(data, columns, min_rows, max_file_mib)
    learned = graph_files.read_edges(edges, dataset.variables)
    fitted = personalise(dataset, learned.dag)
    graph_files.write_all(fitted, out)
    if as_json:
        click.echo(lgbn_json(fitted), nl=False)
    else:
        click.echo(f"refitted {int(fitted.dag.sum())} edges on {dataset.n_samples} rows; kept in {out}")


def _read(data: Path, columns: str | None, min_rows: int, max_file_mib: int) -> Dataset:
    from fedbnsl_client.dataset import Dataset

    chosen = next(csv.reader([columns])) if columns else []
    with warnings_on_stderr():
        return Dataset.read(data, columns=chosen, min_rows=min_rows, max_file_bytes=max_file_mib * 2**20)


@contextmanager
def warnings_on_stderr() -> Generator[None]:
    """Show what is odd about a table as plain lines."""
    from fedbnsl_client.dataset import DataWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        yield
    for warning in caught:
        click.secho(f"warning: {warning.message}", fg="yellow", err=True)
