"""Take part in a run from Python: what `participant join` does, with a table that a program holds."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Literal, overload

from fedbnsl.console.tell import tell
from fedbnsl.graphs.formats import LearnedGraph
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.data.frames import dictionary_from, site_tables
from fedbnsl_client.join_run import Told, take_part
from fedbnsl_client.site import identity as site_identity
from fedbnsl_client.site.admission import PublicTable


@overload
def join(
    table: object,
    coordinator: str,
    *,
    site: str,
    dictionary: Dictionary | Mapping[str, Any] | Path | str | None = None,
    absent: Sequence[str] = (),
    identity: Path | str | None = None,
    federation: str | None = None,
    out: Path | str | None = None,
    patience_s: float = 60.0,
    wait: Literal[True] = True,
) -> LearnedGraph: ...


@overload
def join(
    table: object,
    coordinator: str,
    *,
    site: str,
    dictionary: Dictionary | Mapping[str, Any] | Path | str | None = None,
    absent: Sequence[str] = (),
    identity: Path | str | None = None,
    federation: str | None = None,
    out: Path | str | None = None,
    patience_s: float = 60.0,
    wait: Literal[False],
) -> "Future[LearnedGraph]": ...


def join(
    table: object,
    coordinator: str,
    *,
    site: str,
    dictionary: Dictionary | Mapping[str, Any] | Path | str | None = None,
    absent: Sequence[str] = (),
    identity: Path | str | None = None,
    federation: str | None = None,
    out: Path | str | None = None,
    patience_s: float = 60.0,
    wait: bool = True,
) -> "LearnedGraph | Future[LearnedGraph]":
    """Take part in the run of a coordinator until its end, and return the learned graph.

    The table must be one that anybody may see: what leaves is not counted. A table that is guarded by a policy and a
    ledger joins by the command ``fedbnsl participant join --policy FOLDER``. Raises DataError if the table cannot be
    used; FedbnslError if the coordinator refuses, stays away, or ends the run without a result.

    Parameters
    ----------
    table
        A data frame, or an (n, d) array, whose variables are X1, X2, ...
    coordinator
        host:port.
    site
        Name of this site.
    dictionary
        What each variable is, as for `FedSparseBNSL`. A run that has a dictionary needs the same one here.
    absent
        Variables of the run that this data frame lacks, as `absent = true` of a columns.toml says; also the column of
        kind group, if each row is a group. A run with gaps, such as standard, learns of the others.
    identity
        Folder of an enrolled site, for TLS. None: plaintext, which only a coordinator on this machine takes.
    federation
        Name of the federation, where the folder is enrolled in several.
    out
        Folder for the graph and the site's own refit of it. None: nothing is kept.
    patience_s
        Seconds to call a coordinator that does not answer, before the run's own plan is known.
    wait
        False: take part in another thread, and return a `Future` of the graph at once.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbnsl import join, serve
    >>> rng = np.random.default_rng(0)
    >>> cause = rng.standard_normal((2, 500))
    >>> tables = [np.column_stack([row, row + rng.standard_normal(500)]) for row in cause]
    >>> run = serve("lean", sites=2, variables=["X1", "X2"])
    >>> other = join(tables[0], run.address, site="south", wait=False)
    >>> join(tables[1], run.address, site="north").variables
    ('X1', 'X2')
    """
    described = dictionary_from(dictionary, origin="join")
    (dataset,) = site_tables({site: table}, dictionary=described, lacking=absent).values()
    folder = None if identity is None else Path(identity)
    link = site_identity.link(folder, coordinator, insecure=identity is None, federation=federation)
    part = partial(_take_part, PublicTable(site, dataset), link, None if out is None else Path(out), patience_s)
    if wait:
        return part()
    taken: Future[LearnedGraph] = Future()

    def work() -> None:
        try:
            taken.set_result(part())
        except BaseException as error:  # it is raised where the result is asked for
            taken.set_exception(error)

    Thread(target=work, name=f"fedbnsl-{site}", daemon=True).start()
    return taken


def _take_part(table: PublicTable, link: site_identity.Link, out: Path | None, patience_s: float) -> LearnedGraph:
    told = Told(lambda text: tell(f"{table.site}: {text}", err=True))
    return take_part(table, link, patience_s=patience_s, told=told, out=out)
