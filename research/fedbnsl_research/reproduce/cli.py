"""`fedbnsl reproduce`: run the experiments behind the paper's tables and figures again."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbnsl_research.seeds import Seeds

if TYPE_CHECKING:
    from fedbnsl_research.reproduce.study import Study

# Each in its module of `fedbnsl_research.reproduce`, under the name STUDY.
STUDIES = {
    "table1": "communication and accuracy at d=20 and d=200 (Table 1)",
    "convergence": "SHD, TPR and FDR by round, homogeneous and heterogeneous data (Figure 1)",
    "personalisation": "consensus, personalised and local weights of 20 sites with 50 rows (Figure 2)",
    "privacy-utility": "accuracy by epsilon (Figure 3)",
    "dimension": "private accuracy at d=20 to 200, epsilon 10 (Figure 4)",
    "sachs": "the protein data: all methods, three references, controls (section 5.3)",
    "standardisation": "raw against standardised tables, three local solvers (Appendix)",
    "smoothness": "share of the budget for the second moments, epsilon 5 (Appendix)",
    "dp-variants": "Gaussian noise and zCDP against Laplace noise (Appendix)",
}


def study_named(name: str) -> Study:
    """The study behind a name of the command line."""
    study: Study = import_module(f"fedbnsl_research.reproduce.{name.replace('-', '_')}").STUDY
    return study


_NAMES = "\b\nNames:\n" + "\n".join(f"  {name:<16} {what}" for name, what in STUDIES.items())


@click.command(epilog=_NAMES)
@click.argument("name", type=click.Choice(list(STUDIES)), metavar="NAME")
@click.option("--seeds", type=Seeds(), help="Seeds of the data, such as 2..11 or 2,5,7.  [default: 2..11, quick: 2,3]")
@click.option("--jobs", type=int, default=1, show_default=True, help="Processes; -1: one a processor.")
@click.option("--quick", is_flag=True, help="Within two minutes: fewer seeds, smaller settings. The page says so.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for page, figure and tables.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison with the paper as JSON.")
def reproduce(name: str, seeds: tuple[int, ...] | None, jobs: int, quick: bool, out: Path, as_json: bool) -> None:
    """Run the experiment behind a table or figure of the paper; write a page that compares.

    The folder gets index.html, runs.csv (tidy, a row a run), comparison.csv and the figure as SVG and PNG. The same
    command continues where it was interrupted.
    """
    from rich.console import Console

    from fedbnsl_research.reproduce.display import print_comparisons
    from fedbnsl_research.reproduce.study import reproduce as run_study

    seeds = seeds or ((2, 3) if quick else tuple(range(2, 12)))
    comparisons = run_study(study_named(name), seeds, out, quick=quick, jobs=jobs, console=Console(stderr=True))
    if as_json:
        click.echo(json.dumps([{**asdict(c), "difference": c.difference} for c in comparisons], ensure_ascii=False))
        return
    print_comparisons(comparisons, out, Console(), quick=quick)
