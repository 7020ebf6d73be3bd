"""`fedbnsl participant predict`: rows of a site's table predicted by a learned network, where they lie."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedbnsl.files.new_files import require_new
from fedbnsl_client.site.options import FOLDER, PATH


@click.command()
@click.argument("run", type=PATH)
@FOLDER
@click.option("--target", metavar="NAME", required=True, help="Variable to predict.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="CSV file to write; must not exist."
)
@click.option("--dataset", "dataset_id", help="Which dataset's rows.  [default: the policy's only one]")
@click.option(
    "--common-means", is_flag=True, help="Take the means of all sites, and not those of the variables in this table."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
def predict(
    run: Path,
    folder: Path,
    target: str,
    out: Path,
    dataset_id: str | None,
    common_means: bool,
    as_json: bool,
) -> None:
    """Predict a variable in the rows of the table of a site's FOLDER by the network of RUN; nothing leaves the site.

    RUN is network.json, or the folder that has it: that of the run at the coordinator, or of its results at the site.
    Of a number, its mean and the interval that holds 95 % of values are written; of a variable with levels, how likely
    each is; rows are those that the site's dictionary and column map leave of the table, in their order. What a row has
    of the target itself does not count, but how near predictions come to it is told, here alone. A row that lacks
    values is predicted from the others. Variables have the means that they have here: sites may differ in them. The
    file tells of single persons: only its owner can read it.
    """
    import numpy as np

    from fedbnsl.network.fitted_network import read_fitted_network
    from fedbnsl.network.prediction_file import lines_of, told_of, write_predictions
    from fedbnsl.network.predictions import predicted
    from fedbnsl_client.budget.policy import Policy
    from fedbnsl_client.data.network_rows import rows_for
    from fedbnsl_client.site import folder as site_folder

    require_new(out)
    network = read_fitted_network(run)
    network.require(target)
    policy = Policy.load(folder / site_folder.POLICY)
    table = site_folder.read_table(folder, policy, policy.dataset(dataset_id).id)
    X, common = rows_for(network, table), network.variables
    if not common_means:
        network, common = network.with_own_means(X)
    found = predicted(network, X, target, np.random.default_rng(1))
    write_predictions(found, X, network, target, out)
    told = {"run": str(run), "out": str(out), **told_of(found, X, network, target, common)}
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    careful = [f"be careful: {doubt}" for doubt in (*told["doubts"], *told["notes"])]
    for line in (*careful, *lines_of(told), f"wrote {out}: {len(X):,} rows; nothing has left this machine"):
        click.echo(line)
