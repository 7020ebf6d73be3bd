"""`fedbnsl coordinator backup`: run folders in one file, from which their runs go on."""

from pathlib import Path

import click

from fedbnsl.files.archive import KEEP, OUT, write_archive


@click.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False, path_type=Path))
@OUT
@KEEP
def backup(runs: Path, out: Path, keep: int | None) -> None:
    """Write all files of RUNS, a run folder or a folder of runs, into one tar file, also while a coordinator works.

    A run that is restored goes on from the round that it was in, as after a crash: sites send what they sent before,
    and pay for nothing twice. The federation's folder, with its keys, is not in it.
    """
    click.echo(write_archive(runs, out, runs.resolve().name, keep=keep, order=_order))


def _order(path: str) -> int:
    """A checkpoint before its events: each round that it knows has its line then. What sites have spent comes last."""
    from fedbnsl_server.store.kept_checkpoints import FOLDER
    from fedbnsl_server.store.run_folder import CHECKPOINT
    from fedbnsl_server.store.site_ledgers import FILE

    name, parent = Path(path).name, Path(path).parent.name
    if name == CHECKPOINT or parent == FOLDER:
        return -1
    return int(name == FILE)
