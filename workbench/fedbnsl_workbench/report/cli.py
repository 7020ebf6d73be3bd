"""`fedbnsl report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=_PATH)
@click.option(
    "--truth",
    type=_PATH,
    help="CSV with columns source,target and perhaps weight: the graph to compare with.  [default: "
    "RUN/data/truth.csv if there]",
)
@click.option(
    "--data",
    "folder",
    type=_PATH,
    metavar="FOLDER",
    help="Folder with site-1.csv, ...: adds means, standard deviations and varsortability, computed from the tables. "
    "With private tables, do not share that page.  [default: RUN/data if there and the plan is not private]",
)
@click.option(
    "--card",
    is_flag=True,
    help="Write the model card in its place: one to three A4 pages to print, for the appendix of a paper.",
)
@click.option("--name-sites", is_flag=True, help="With --card: name the sites, which have aliases otherwise.")
@click.option(
    "--out",
    type=_PATH,
    metavar="FILE",
    help="The page; a card may be .json.  [default: RUN/report.html or RUN/card.html, replaced if there]",
)
def report(run: Path, truth: Path | None, folder: Path | None, card: bool, name_sites: bool, out: Path | None) -> None:
    """Write one self-contained HTML page about the run folder RUN.

    The run has ended: finished, or interrupted or failed after its first round. The page shows the graph, how it was
    learned, what it cost in bytes and privacy, and what to be careful about, and fetches nothing. It is made from the
    coordinator's files; tables are read only if --data names them, or if a run without privacy holds them in RUN/data.
    """
    if name_sites and not card:
        raise click.UsageError("--name-sites is for --card: the report names the sites")
    if card and (truth or folder):
        raise click.UsageError("--card has neither a truth nor tables: it says what the run says")
    from fedbnsl_client.cli import warnings_on_stderr
    from fedbnsl_workbench.report.card import write_card
    from fedbnsl_workbench.report.page import write_page
    from fedbnsl_workbench.report.run_files import read_run
    from fedbnsl_workbench.working import working

    if card:
        with working("making the card"):
            path = write_card(run, out, name_sites=name_sites)
        click.echo(f"wrote {path}")
        return
    with warnings_on_stderr(), working("making the page"):
        read = read_run(run, truth=truth, data=folder)
        path = write_page(read, out)
    click.echo(f"wrote {path}")
    if read.holds_private:
        held = f"the page holds means and standard deviations computed from the tables in {read.tables}"
        click.echo(f"caution: {held}; if these are private, do not share it", err=True)
