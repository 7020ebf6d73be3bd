"""A coordinator in a program: it serves one run in a thread of its own."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

from fedbnsl.console.tell import tell
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.run.serve import serve as serve_run
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_workbench.network import Network, described
from fedbnsl_workbench.plan_settings import for_sites


class Serving:
    """A run that is being served.

    Attributes
    ----------
    address
        host:port that sites call.
    """

    def __init__(self, address: str, ended: "Future[Network]") -> None:
        self.address = address
        self._ended = ended

    def network(self, timeout_s: float | None = None) -> Network:
        """What the run has learned, once it is over.

        Parameters
        ----------
        timeout_s
            How long to wait; None: until it is over, which the plan's deadlines bring about.

        Raises
        ------
        TimeoutError
            If it is not over by then.
        FedbnslError
            Whatever ended the run without a result.
        """
        return self._ended.result(timeout_s)


def serve(
    plan: Plan | Path | str,
    *,
    sites: int,
    variables: Sequence[str] = (),
    dictionary: Dictionary | Mapping[str, Any] | Path | str | None = None,
    out: Path | str = "run",
    listen: str = "127.0.0.1:0",
    federation: Path | str | None = None,
) -> Serving:
    """Open a coordinator for one run and return at once; sites join it by `join` or ``fedbnsl participant join``.

    Parameters
    ----------
    plan
        A `Plan`, the name of a ready plan, or a path.
    variables
        Names of the variables, unless the plan or the dictionary has them.
    dictionary
        What each variable is, as for `FedSparseBNSL`.
    out
        The run folder. An unfinished run of the same plan there is continued.
    listen
        host:port; port 0 takes a free one.
    federation
        Folder of the federation, whose sites may call over TLS. None: anybody on this machine, in plaintext.

    Raises
    ------
    FedbnslError
        If the plan cannot be served, or the port or the folder cannot be used.

    Examples
    --------
    A whole federation on this machine, over real connections:

    >>> import numpy as np
    >>> from fedbnsl import join, serve
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((3, 400))
    >>> tables = {f"site-{k}": np.column_stack([x[k], x[k] + rng.standard_normal(400)]) for k in range(3)}
    >>> run = serve("standard", sites=3, variables=["X1", "X2"], out="served")
    >>> joined = [join(table, run.address, site=site, wait=False) for site, table in tables.items()]
    >>> [(edge["source"], edge["target"]) for edge in run.network().result["edges"]]
    [('X1', 'X2')]
    """
    plan = for_sites(described(plan, dictionary), sites)
    if variables:
        plan = plan.with_settings(variables=list(variables))
    folder, opened, ended = Path(out).expanduser().absolute(), Future[str](), Future[Network]()

    def work() -> None:
        try:
            members = None if federation is None else Federation.open(Path(federation).expanduser())
            follower = Follower(notice=lambda text: tell(f"coordinator: {text}", err=True))
            serve_run(plan, folder, ServerSettings(listen, opened.set_result, members), follower)
            ended.set_result(Network.load(folder))
        except BaseException as error:  # it is raised where the address or the network is asked for
            if not opened.done():
                opened.set_exception(error)
            ended.set_exception(error)

    Thread(target=work, name="fedbnsl-coordinator", daemon=True).start()
    return Serving(opened.result(), ended)
