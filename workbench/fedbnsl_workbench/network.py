"""What a run has learned, for programs: the graph with how sure it is, effects, and the page."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from rich.console import Console

from fedbnsl.console.wording import counted
from fedbnsl.errors import ResultError, SetupError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.frames import dictionary_from, site_tables
from fedbnsl_server.results.effect_report import effect_of
from fedbnsl_server.results.learned_network import LearnedNetwork, read_network
from fedbnsl_server.store.result_file import read_result
from fedbnsl_workbench.networks.remedies import remedy_as_note
from fedbnsl_workbench.plan_settings import for_tables
from fedbnsl_workbench.simulate import simulate as simulate_run

if TYPE_CHECKING:
    import pandas as pd

    from fedbnsl_server.results.network_of_run import NetworkOfRun
    from fedbnsl_workbench.networks.asking import Question
    from fedbnsl_workbench.networks.drawing import Drawing
    from fedbnsl_workbench.report.run_files import ReportedRun


@dataclass(frozen=True, repr=False)
class Network:
    """The network that a run learned, read from its folder. A notebook shows its drawing.

    Files are read once: an object says what the folder held when it was asked first.

    Attributes
    ----------
    folder
        The run folder.
    result
        All of result.json.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbnsl import simulate
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((2, 400))
    >>> tables = [np.column_stack([row, row + rng.standard_normal(400)]) for row in x]
    >>> network = simulate("standard", tables, "simulated")
    >>> [(edge["source"], edge["target"], edge["directed"]) for edge in network.result["edges"]]
    [('X1', 'X2', False)]
    >>> network.effect("X1", "X2")["verdict"]
    'not identified'
    >>> low, high = network.given(X1=1.0).predict("X2").interval
    >>> bool(low < 1.0 < high)
    True
    """

    folder: Path
    result: Mapping[str, Any]

    @classmethod
    @remedy_as_note
    def load(cls, folder: Path | str) -> "Network":
        """That of a run folder.

        Raises
        ------
        ResultError
            If it holds no result, or a damaged one.
        """
        if not isinstance(folder, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ResultError(f"{folder!r}: expected the path of a run folder")
        folder = Path(folder).expanduser().absolute()
        return cls(folder, read_result(folder))

    @property
    def variables(self) -> list[str]:
        """Names, in order."""
        return list(self.result["variables"])

    @cached_property
    @remedy_as_note
    def edges(self) -> "pd.DataFrame":
        """A row for each edge; ``result["edges"]`` has all that is told of each.

        `source`, `target`; `directed`: False where either direction fits, `directed_by` says what it rests on;
        `weight`, in the target's unit for one of the source, and the ends `low` and `high` of its 95 % interval; of an
        edge with several coefficients, those of the largest, whose levels are `source_level` and `target_level`;
        `standardised`: the weight without units; `share`, `share_forward` and `share_backward` of the bootstrap draws
        that have the edge, directed from source to target, and back. NaN where something is not told.

        Raises
        ------
        SetupError
            If pandas is not installed.
        """
        from fedbnsl_workbench.networks.frames import edges_of

        return edges_of(self.result)

    @property
    @remedy_as_note
    def hidden_causes(self) -> "pd.DataFrame | None":
        """What holds if common causes may be hidden, a row for each link; None: the run does not tell it.

        `source`, `marks` as people draw them, `target`; `mark_source` and `mark_target`: tail, arrow or circle; `says`
        in words. Of the bootstrap draws, NaN where marks were not counted: `linked`, with the same mark at the source
        (`same_source`) and at the target (`same_target`), and with an arrowhead at both (`hidden_cause`).

        Raises
        ------
        SetupError
            If pandas is not installed; ``result["hidden_causes"]`` has the same.
        """
        from fedbnsl_workbench.networks.frames import links_of

        return None if self.result["hidden_causes"] is None else links_of(self.result["hidden_causes"])

    @property
    def warnings(self) -> list[str]:
        """What to know before believing it; first what the summary has in red, such as what contradicts it."""
        from fedbnsl_workbench.report.summary import at_the_head

        told = at_the_head(self.result)
        return [*self._in_red, *(text for text in self.result["warnings"] if text not in told)]

    @property
    def _in_red(self) -> list[str]:
        from fedbnsl_workbench.report.summary import in_red

        return in_red(self.result)

    def graph(self) -> "nx.DiGraph[str]":
        """With all that is said of an edge as its attributes; one without a direction is there both ways."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.variables)
        for edge in self.result["edges"]:
            ends = edge["source"], edge["target"]
            for way in (ends,) if edge["directed"] else (ends, ends[::-1]):
                graph.add_edge(*way, **edge)
        return graph

    @remedy_as_note
    def plot(self, *, none_hidden: bool = False) -> "Drawing":
        """The drawing alone: a notebook shows it, and ``save("network.html")`` or ``save("network.svg")`` writes it.

        Point at an edge or a variable for its numbers, and click on a variable for what leads to it and what follows
        from it. It fetches nothing; where scripts may not run, it is a still drawing.

        Parameters
        ----------
        none_hidden
            Draw the graph that holds if no common cause is hidden, even where the run tells what holds without that.

        Raises
        ------
        ResultError
            If a file of the run is damaged.
        """
        return self._drawn(none_hidden=none_hidden)

    @remedy_as_note
    def effect(
        self, source: str | Sequence[str], target: str, change: tuple[float, float] | None = None
    ) -> dict[str, Any]:
        """The total effect of a variable, or of several that are set together, on another: what `fedbnsl effect` says.

        Parameters
        ----------
        change
            From where to where the source is set, in its unit from the mean of its site; None: one unit higher.

        Raises
        ------
        SetupError
            If a name is none of the network's, or a curve does not reach as far as the change.
        ResultError
            If the run has no residual variances.
        """
        sources: list[Any] = list(source) if isinstance(source, list | tuple) else [source]
        if not all(isinstance(name, str) for name in (*sources, target)):
            raise SetupError(f"the effect of {source!r} on {target!r}: expected names of variables")
        if change is not None:
            try:
                low, high = map(float, change)
            except (TypeError, ValueError):
                wanted = "expected two numbers, from where to where, such as (0, 1)"
                raise SetupError(f"a change of {change!r}: {wanted}") from None
            change = low, high
        return effect_of(self._learned, sources, target, change)

    def given(self, values: Mapping[str, object] | None = None, /, **more: object) -> "Question":
        """Where these values are known: ``given(age=60, sex="f").predict("pressure")``.

        Values are levels, or numbers in the data dictionary's unit; names that are no Python names stand in a dict.

        Raises
        ------
        SetupError
            As `sample`.
        """
        return self._question.given(values, **more)

    def do(self, values: Mapping[str, object] | None = None, /, **more: object) -> "Question":
        """Where an intervention sets these values: ``do(stage="III").mean("crp")``; see `given`.

        Where common causes may be hidden, ``do(stage="III").none_hidden()`` takes it that none is.

        Raises
        ------
        SetupError
            As `sample`.
        """
        return self._question.do(values, **more)

    @remedy_as_note
    def ask(
        self,
        target: str,
        given: Mapping[str, object] | None = None,
        do: Mapping[str, object] | None = None,
        *,
        none_hidden: bool = False,
    ) -> dict[str, Any]:
        """What a variable is like where others are known, or are set: what `fedbnsl network ask --json` prints.

        Parameters
        ----------
        given, do
            By variable, numbers in the dictionary's unit, or levels.
        none_hidden
            With `do`: take it that no common cause is missing.

        Raises
        ------
        SetupError
            As `sample`; or if there is no such variable or value, nothing has the known values, or an effect is not
            identified.
        """
        from fedbnsl_workbench.networks.asking import asked

        return asked(self.fitted, target, given or {}, do or {}, none_hidden=none_hidden)

    @remedy_as_note
    def predict(self, rows: "pd.DataFrame", target: str, *, own_means: bool = False) -> "pd.DataFrame":
        """Predict the target in each row of a data frame, from what else the row has, as `fedbnsl network predict`.

        Of a number `predicted` (its mean), and the ends `low` and `high` of the interval that holds 95 % of values; of
        a variable with levels, the probability of each in a column of its name. NaN in rows whose values never occur
        together. `attrs["unread"]`: by variable, how many cells the data dictionary does not have, which count as
        missing; `attrs["scores"]`: how near the predictions come, if rows have the target.

        Parameters
        ----------
        own_means
            Whether variables have the means of these rows, as those of one site; else they have those of all sites.

        Raises
        ------
        SetupError
            As `sample`; or if the frame has no column of the network, or the network no such target.
        """
        from fedbnsl.network.predictions import predicted, scored
        from fedbnsl_workbench.networks.frames import predictions_of
        from fedbnsl_workbench.networks.rows import rows_of_table

        if not hasattr(rows, "to_dict"):
            raise SetupError(f"expected a data frame of rows to predict; got {type(rows).__name__}")
        self.fitted.require(target)
        X, unread = rows_of_table(self.fitted, rows.to_dict("records"))
        used = self.fitted.with_own_means(X)[0] if own_means else self.fitted
        found = predicted(used, X, target, np.random.default_rng(1))
        frame = predictions_of(found, rows.index)
        frame.attrs.update(unread=unread, scores=scored(used, found, X, target), doubts=self.fitted.doubts)
        return frame

    @remedy_as_note
    def sample(self, rows: int, seed: int = 1) -> "pd.DataFrame":
        """Synthetic rows, as `fedbnsl network sample` writes them: `attrs["privacy"]` says what they promise.

        Raises
        ------
        SetupError
            If the run does not tell means of its columns, or pandas is not installed.
        ResultError
            If the run has no residual variances, or a file is damaged.
        """
        from fedbnsl_workbench.networks.frames import pandas_or
        from fedbnsl_workbench.networks.synthetic import drawn

        try:
            n, seed = operator.index(rows), operator.index(seed)
        except TypeError:
            raise SetupError(f"{rows!r} rows of seed {seed!r}: expected whole numbers") from None
        if n < 1 or seed < 0:
            raise SetupError(f"{n} rows of seed {seed}: expected at least one row, and a seed of at least 0")
        pandas, fitted = pandas_or("`fedbnsl network sample` writes CSV without it"), self.fitted
        blocks = list(drawn(fitted, n, seed))
        columns = {name: [one for X in blocks for one in fitted.cells(name, X)] for name in fitted.variables}
        frame: pd.DataFrame = pandas.DataFrame(columns)
        frame.attrs["privacy"] = fitted.privacy
        return frame

    @remedy_as_note
    def diff(self, other: "Network | Path | str") -> "pd.DataFrame":
        """What another network says differently of edges: what `fedbnsl network diff` says, a row for each.

        `what`: came, went, turned, directed or left open; `first` and `second`: the edge as either draws it, empty for
        none, and the shares of bootstrap draws that have it, NaN where not told. `attrs["same"]` edges are alike.

        Raises
        ------
        SetupError
            If pandas is not installed.
        ResultError
            If the other folder holds no result, or a damaged one.
        """
        from fedbnsl_workbench.networks.differences import differences
        from fedbnsl_workbench.networks.frames import changes_of

        second = other if isinstance(other, Network) else Network.load(other)
        return changes_of(differences(self.result, second.result))

    @cached_property
    @remedy_as_note
    def fitted(self) -> "NetworkOfRun":
        """The network as a distribution, which `sample`, `ask` and `predict` use. Raises as `sample`."""
        from fedbnsl_server.results.network_of_run import fitted_network

        return fitted_network(self.folder)

    @cached_property
    def _learned(self) -> LearnedNetwork:
        return read_network(self.folder)

    @property
    def _question(self) -> "Question":
        from fedbnsl_workbench.networks.asking import Question

        return Question(self.fitted)

    @remedy_as_note
    def export(self, name: str, out: Path | str) -> list[str]:
        """Write it in the format of another tool: what `fedbnsl network export` does, and says of the file.

        Raises
        ------
        SetupError
            If there is no such format, or it cannot hold this network: a note names one that can.
        ResultError
            If the run has not told what the format needs, or the file cannot be written.
        """
        from fedbnsl_workbench.networks.exports.formats import export

        return export(self.folder, name, Path(out).expanduser())

    @remedy_as_note
    def to_pgmpy(self) -> Any:
        """As a DiscreteBayesianNetwork of pgmpy, or a LinearGaussianBayesianNetwork: levels alone, or numbers alone.

        Curves are straight lines there, ranges have no ends, and of the class of graphs one member is taken:
        ``export("json", ...)`` says which.

        Raises
        ------
        SetupError
            If there are both levels and numbers, or pgmpy is not installed; or as `sample`.
        """
        from fedbnsl_workbench.networks.exports.objects import pgmpy_network

        return pgmpy_network(self.fitted)

    @remedy_as_note
    def to_igraph(self) -> Any:
        """As an `igraph.Graph`, with what `graph` says for networkx.

        Raises
        ------
        SetupError
            If igraph is not installed.
        """
        from fedbnsl_workbench.networks.exports.objects import igraph_graph

        return igraph_graph(self.result)

    @remedy_as_note
    def report(self, out: Path | str | None = None) -> Path:
        """Write the page of the run and return where it is; by default in the run folder.

        Raises
        ------
        ResultError
            If a file of the run is damaged.
        """
        from fedbnsl_workbench.report.page import write_report

        return write_report(self.folder, out=None if out is None else Path(out).expanduser())

    def __repr__(self) -> str:
        red = f"; be careful: {counted(len(self._in_red), 'finding')}, see .warnings" if self._in_red else ""
        return f"Network({str(self.folder)!r}: {counted(len(self.result['edges']), 'edge')}{red})"

    def summary(self) -> str:
        """What `fedbnsl simulate` and `serve` print at the end of a run; also ``print(network)``."""
        from fedbnsl_workbench.report.summary import print_summary

        console = Console(record=True, width=100, file=StringIO())
        print_summary(self.result, self.folder, console, seconds=float(self.result["seconds"]["total"]))
        return console.export_text()

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        n_red = len(self._in_red)
        return self._drawn(self.warnings[:n_red], self.warnings[n_red:]).html

    def _drawn(self, red: Sequence[str] = (), warned: Sequence[str] = (), *, none_hidden: bool = False) -> "Drawing":
        from fedbnsl_workbench.networks.drawing import drawn

        return drawn(self._run, red, warned, none_hidden=none_hidden)

    @cached_property
    def _run(self) -> "ReportedRun":
        from fedbnsl_workbench.report.run_files import read_run

        return read_run(self.folder)


def simulate(
    plan: Plan | Path | str,
    tables: object,
    out: Path | str,
    *,
    dictionary: Dictionary | Mapping[str, Any] | Path | str | None = None,
    noise_seed: int | None = None,
) -> Network:
    """Run a plan over the tables of all sites in this process: the code and the results are those of a federation.

    Nothing is protected from who runs it, whatever the plan says.

    Parameters
    ----------
    plan
        A `Plan`, the name of a ready plan, or a path.
    tables
        One a site, in a list or a dict by site's name: data frames, or (n, d) arrays. As for `FedSparseBNSL.fit`,
        frames may lack cells and columns where the plan uses rows with gaps.
    out
        The run folder; it must not hold a run yet.
    dictionary
        What each variable is, as for `FedSparseBNSL`.
    noise_seed
        Makes the noise of a private plan reproducible. None: the operating system's entropy.

    Raises
    ------
    DataError
        If a table cannot be used.
    FedbnslError
        Whatever else ended the run.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbnsl import simulate
    >>> x = np.random.default_rng(1).standard_normal((2, 300, 3))
    >>> simulate("standard", {"north": x[0], "south": x[1]}, "independent").result["edges"]
    []
    """
    plan = described(plan, dictionary)
    datasets = site_tables(tables, columns=plan.variables, dictionary=plan.dictionary, may_lack=plan.uses_gaps)
    folder = Path(out).expanduser().absolute()
    simulate_run(for_tables(plan, datasets), datasets, folder, noise_seed=noise_seed)
    return Network.load(folder)


def described(plan: Plan | Path | str, dictionary: Dictionary | Mapping[str, Any] | Path | str | None) -> Plan:
    """A plan as programs give one, with a dictionary, if there is one."""
    plan = plan if isinstance(plan, Plan) else Plan.load(plan)
    found = dictionary_from(dictionary, origin="dictionary")
    return plan.with_dictionary(found, origin="dictionary") if found else plan
