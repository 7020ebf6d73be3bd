"""`FedSparseBNSL`: a simulated federation as a scikit-learn estimator, for notebooks."""

import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import networkx as nx
import numpy as np
from rich.console import Console

from fedbnsl.errors import DataError, SetupError
from fedbnsl.graphs.formats import LearnedGraph
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.largest_changes import largest_changes, told
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dataset import MIN_ROWS, Dataset
from fedbnsl_client.data.frames import categories_of, dictionary_from, site_tables, table_over
from fedbnsl_client.data.plan_fit import remarks, rows_for
from fedbnsl_client.data.preparation import column_means, has_intercept
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.refit import known_values, personalise
from fedbnsl_server.algorithm.admm import AdmmState, of_result
from fedbnsl_server.algorithm.consensus_graph import consensus_graph, raw_weights
from fedbnsl_server.observe.terminal import RunDisplay
from fedbnsl_server.store.result_file import learned_class
from fedbnsl_workbench.plan_settings import for_tables, with_dotted
from fedbnsl_workbench.report.summary import in_red
from fedbnsl_workbench.scoring.evaluation import columns_of, learned_graph, scales_of
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import by_site

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import validation
except ModuleNotFoundError:
    raise SetupError(
        "FedSparseBNSL needs scikit-learn, which is not installed", remedy="pip install scikit-learn"
    ) from None


check_is_fitted: Callable[[object], None] = cast(Any, validation).check_is_fitted


class SimulationWarning(UserWarning):
    """What a private plan promises does not hold for a simulation."""


class ResultWarning(UserWarning):
    """What the summary of a run says in red: the result may be wrong, or lacks something."""


_DEFAULT = "standard"  # for tables of your own, which a notebook has


class FedSparseBNSL(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Learn one Bayesian network from the tables of several sites, simulated in this process.

    The code is that of a real federation, and the results are the same, bit for bit; only the messages stay in memory.
    One process holds all tables, so nothing is protected from the person who runs
    it. A plan with privacy guarantees nothing either: it shows what a private federation would learn.

    Parameters
    ----------
    rounds, l1_weight, consensus_penalty, threshold, local_steps, refit_rounds
        Settings of the plan, as in a plan file. None: as in `plan`.
        A refit goes with a plan that does not search, such as fed-sparse.
    epsilon
        Budget of a private plan, for each site's table. Without a `plan`, the ready plan private-steps is used, with
        the settings of the nearest budget that they were tuned for; None: as in `plan`, by default no privacy.
    plan
        What all settings start from: a `Plan`, the name of a ready plan (`fedbnsl plan list`) or a path. None:
        standard, for tables of your own; with `epsilon` private-steps.
    dictionary
        What each variable is, as in dictionary.toml: a `Dictionary`, a path, or a dict such as
        ``{"sex": {"kind": "binary", "levels": ["f", "m"]}, "age": {"range": [0, 110]}}``. With it, tables may hold
        text, categories and truth values, and columns that it does not name are not used. None: that of `plan`, if
        any; otherwise columns of pandas' type category have its levels, where the plan is not private, and all others
        are numbers.
    settings
        Any other settings of the plan by name, such as ``{"value_type": "float32", "privacy.clip": 5.0}``.
    noise_seed
        Makes the noise of a private plan reproducible. None: the operating system's entropy.
    out
        Folder that keeps the run, for `fedbnsl report` and `fedbnsl evaluate`; it must not hold one yet. None: nothing
        is kept.
    progress
        Show the rounds, and how far a search is, on standard error.

    Attributes
    ----------
    columns_ : ndarray of shape (d,)
        Names of the columns that the arrays below are over. Columns are variables, but a nominal variable of the plan's
        data dictionary with K levels has K - 1 columns, such as ``blood=A``.
    weights_ : ndarray of shape (d, d)
        Weights of the learned DAG, ``weights_[i, j]`` of the edge from column i to column j, in units of the tables;
        NaN where the noise of a private run took one beyond what a level can change.
    raw_weights_ : ndarray of shape (d, d)
        The consensus weights W of the last ADMM round, before threshold and refit; without ADMM rounds the weights of
        the last searched graph. In units of the tables.
    graph_ : networkx.DiGraph
        The DAG over the names of the variables, from parent to child, with the attribute ``weight``.
    cpdag_ : ndarray of shape (V, V)
        What the run says of the edges between the V variables: ``cpdag_[i, j]`` of the edge from variable i to variable
        j, ``cpdag_[j, i]`` as well if nothing tells its direction. Where the plan's graph_class is dag-equal-variance,
        all edges are directed.
    undirected_edges_ : list of (source, target)
        Edges that nothing directs, named in the direction that they have in the DAG of `graph_`, `edges_` and
        `weights_`, which is one of the class.
    edges_ : list of (source, target, weight)
        Between variables, by decreasing absolute weight; where the plan divides columns by scales, by decreasing weight
        without units. Of an edge with several coefficients, the largest; ``result_["edges"]`` has all of them. NaN
        where the weight is not known, or withheld under privacy.
    history_ : list of dict
        One a round: round, kind, acyclicity, edges, bytes_up, bytes_down (of serialised messages, all sites), seconds.
    privacy_ : dict or None
        What a private plan would have spent, and under ``no_guarantee_because`` why nothing is guaranteed.
    residual_variance_ : ndarray of shape (d,) or None
        Of each column given the parents of its variable, over all sites; None without a refit or search. Where effects
        bend, of straight lines: ``result_["fit"]`` has what the curves leave. With privacy
        they come from noisy moments; None without `moments_rounds`, or if the noise hides the variances; NaN for a
        variable that it hides.
    warnings_ : list of str
        What to know about the tables and before believing the directions of edges.
    feature_names_in_, n_features_in_
        Names of the variables, in order, and their number.
    result_ : dict
        All of result.json.
    plan_ : Plan
        The settings that were used.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbnsl import FedSparseBNSL
    >>> rng = np.random.default_rng(0)
    >>> def table(n):
    ...     cause, noise = rng.standard_normal((2, n))
    ...     return np.column_stack([cause, 1.5 * cause + noise])
    >>> model = FedSparseBNSL(plan="lean", rounds=20).fit([table(500), table(800)])
    >>> [(source, target, round(weight, 1)) for source, target, weight in model.edges_]
    [('X1', 'X2', 1.5)]
    >>> model.personalised(table(300)).dag.tolist()
    [[False, True], [False, False]]
    """

    def __init__(
        self,
        *,
        rounds: int | None = None,
        l1_weight: float | None = None,
        consensus_penalty: float | None = None,
        threshold: float | None = None,
        local_steps: int | None = None,
        refit_rounds: int | None = None,
        epsilon: float | None = None,
        plan: Plan | Path | str | None = None,
        dictionary: Dictionary | Mapping[str, Any] | Path | str | None = None,
        settings: Mapping[str, Any] | None = None,
        noise_seed: int | None = None,
        out: Path | str | None = None,
        progress: bool = False,
    ) -> None:
        # scikit-learn's convention: kept as given, checked in fit.
        self.rounds = rounds
        self.l1_weight = l1_weight
        self.consensus_penalty = consensus_penalty
        self.threshold = threshold
        self.local_steps = local_steps
        self.refit_rounds = refit_rounds
        self.epsilon = epsilon
        self.plan = plan
        self.dictionary = dictionary
        self.settings = settings
        self.noise_seed = noise_seed
        self.out = out
        self.progress = progress

    def fit(self, tables: object, y: None = None) -> Self:
        """Run the federation. The results of an earlier fit stay until this one succeeds.

        The first Ctrl-C (or interrupt of the notebook's kernel) while it searches ends the search with the best graph
        so far, and `warnings_` says so; a second one interrupts.

        A `ResultWarning` tells each finding that the summary of `fedbnsl simulate` has in red at its head, such as a
        test that contradicts an assumption. All tests are in ``result_["verdict"]``.

        Parameters
        ----------
        tables
            One table a site, in a list or in a dict by site's name: data frames with columns in any order, or (n, d)
            arrays, whose variables are named X1, X2, ... Where the plan uses rows with gaps, as standard does, cells
            may be missing (NaN, None), and a data frame may lack columns that others have: its site then does not have
            the variable, and a warning says so. With a dictionary, a column of kind "group" tells which rows belong
            together. For data frames ``pip install pandas``, or a package like it: no extra of fedbnsl brings one
            along.
        y
            Ignored.

        Raises
        ------
        PlanError
            If a setting is impossible.
        DataError
            If a table cannot be used: missing values that the plan does not take, infinite ones, text that no
            dictionary explains, a constant column, other columns.
        FedbnslError
            Whatever else ended the run, such as `DivergenceError`.
        """
        plan = self._plan()
        if plan.privacy is None and self.noise_seed is not None:
            raise SetupError("noise_seed: the plan has no privacy, and so no noise")
        if plan.privacy is None and not plan.dictionary and (found := categories_of(tables)):
            plan = plan.with_dictionary(found.over(plan.variables or found.variables), origin="the tables' categories")
        datasets = site_tables(tables, columns=plan.variables, dictionary=plan.dictionary, may_lack=plan.uses_gaps)
        about_tables = by_site({site: remarks(table, plan) for site, table in datasets.items()})
        for text in about_tables:
            warnings.warn(text, DataWarning, stacklevel=2)
        if plan.privacy is not None:
            text = "this simulation guarantees nothing: one process holds all tables, and no ledger counts their budget"
            warnings.warn(text, SimulationWarning, stacklevel=2)
        plan = for_tables(plan, datasets)
        states, seed = list[AdmmState](), _plain(self.noise_seed)

        def follow(state: AdmmState) -> None:
            states[:] = [state]

        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch, "run") if self.out is None else Path(self.out).expanduser()
            if self.progress:
                with RunDisplay(f"{plan.name}: {len(datasets)} sites in one process", Console(stderr=True)) as display:
                    result = simulate(
                        plan,
                        datasets,
                        out,
                        noise_seed=seed,
                        follow=follow,
                        watch=display.show,
                        on_enough=display.say,
                    )
            else:
                say = partial(print, file=sys.stderr)
                result = simulate(plan, datasets, out, noise_seed=seed, follow=follow, on_enough=say)
        self._keep(plan, result, states[0], about_tables)
        for text in in_red(result):
            warnings.warn(text, ResultWarning, stacklevel=2)
        return self

    def _plan(self) -> Plan:
        """The base plan with what the parameters replace."""
        named = ("rounds", "l1_weight", "consensus_penalty", "threshold", "local_steps", "refit_rounds")
        replaced = {name: value for name in named if (value := getattr(self, name)) is not None}
        epsilon = _plain(self.epsilon)
        if epsilon is not None:
            replaced["privacy.epsilon"] = epsilon
        if isinstance(self.plan, Plan):
            base = self.plan
        else:
            base = Plan.load(self.plan or (_DEFAULT if epsilon is None else "private-steps"), epsilon=epsilon)
        settings = {name: _plain(value) for name, value in {**replaced, **(self.settings or {})}.items()}
        plan = with_dotted(base, settings, origin="FedSparseBNSL")
        if self.dictionary is None:
            return plan
        return plan.with_dictionary(dictionary_from(self.dictionary, origin="FedSparseBNSL"), origin="FedSparseBNSL")

    def _keep(self, plan: Plan, result: dict[str, Any], state: AdmmState, about_tables: list[str]) -> None:
        names: list[str] = result["variables"]
        columns = columns_of(result)
        state, _ = of_result(state, plan.columns(plan.column_names or columns.names))
        edges = [
            (edge["source"], edge["target"], math.nan if edge["weight"] is None else edge["weight"])
            for edge in result["edges"]
        ]
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(names)
        graph.add_weighted_edges_from(edges)
        # All at once, and last: an interrupted fit leaves the results of the earlier one intact.
        self.__dict__.update(
            plan_=plan,
            result_=result,
            columns_=np.array(columns.names, dtype=object),
            weights_=consensus_graph(state, plan, plan.edge_mask(columns.names)).told,
            raw_weights_=told(raw_weights(state, plan).to_dense(), largest_changes(plan, columns)),
            graph_=graph,
            cpdag_=learned_class(result),
            undirected_edges_=[(edge["source"], edge["target"]) for edge in result["edges"] if not edge["directed"]],
            edges_=edges,
            history_=[_round(entry) for entry in result["rounds"]],
            privacy_=result["privacy"],
            residual_variance_=state.residual_variance.copy() if state.residual_variance.size else None,
            # Without privacy, the warnings of the result already include those about the tables.
            warnings_=[*(about_tables if plan.privacy else []), *result["warnings"]],
            feature_names_in_=np.array(names, dtype=object),
            n_features_in_=len(names),
        )

    def score(self, tables: object, y: None = None) -> float:
        """Minus the mean over sites of 1/(2n) ||X - X W||_F^2 with `weights_`: higher is better, for model selection.

        Use tables that were not fitted: a denser graph always fits its own tables better. The score is in squared
        units of the columns or, if the run divided them by scales, without units. Each table has an intercept of its
        own if the plan gave sites one; rows with a missing value do not count if the plan leaves them out.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If a table cannot be used.
        """
        check_is_fitted(self)
        own_means, scales = has_intercept(self._plan_used().preparation), scales_of(vars(self)["result_"])
        losses: list[float] = []
        for table in site_tables(tables, columns=self._names(), dictionary=self._plan_used().dictionary).values():
            X = self._complete(table).X
            loss = SecondMoments.of(X, column_means(X) if own_means else None)
            variance = loss.residual_variance(np.nan_to_num(vars(self)["weights_"]))
            losses.append(float((variance if scales is None else variance / scales**2).sum()) / 2)
        return -float(np.mean(losses))

    def personalised(self, table: object) -> LearnedGraph:
        """Least squares on the learned DAG with one site's own table, as a participant does after a run.

        Where the plan uses rows with gaps, so does this, and the table may lack columns.

        Returns
        -------
        graph
            With `variables`, which are those of `columns_`, `dag`, `weights` (d, d) and `residual_variance` (d,); NaN
            where a column has no value here.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If the table cannot be used.
        """
        check_is_fitted(self)
        result, plan = vars(self)["result_"], self._plan_used()
        own = table_over(table, self._names(), plan.dictionary, may_lack=plan.uses_gaps)
        return personalise(
            self._known(rows_for(own, plan)),
            columns_of(result).spread(learned_graph(result)),
            intercept=has_intercept(plan.preparation),
        )

    def _complete(self, table: Dataset) -> Dataset:
        """The rows without a missing value, over `columns_`.

        Raises DataError if the run's plan uses rows with gaps, and hardly a row is without.
        """
        complete = self._known(rows_for(table, self._plan_used())).complete_cases()
        if self._plan_used().uses_gaps and complete.n_samples < min(MIN_ROWS, table.n_samples):
            raise DataError(
                f"{complete.n_samples} of {table.n_samples} rows are without a missing value; {MIN_ROWS} are needed",
                remedy="Scores are of rows that lack nothing.",
            )
        return complete

    def _known(self, table: Dataset) -> Dataset:
        """A table over `columns_`, without the values that counted as missing in the run, as they lie far apart."""
        table, outlying = table.reordered(vars(self)["columns_"].tolist()), vars(self)["result_"]["outlying"]
        if not outlying:
            return table
        sides = [[outlying.get(name, {}).get(side) for name in table.variables] for side in ("above", "below")]
        return known_values(table, np.array([[one or math.inf for one in side] for side in sides]))[0]

    def _plan_used(self) -> Plan:
        plan: Plan = vars(self)["plan_"]
        return plan

    def _weights(self) -> Matrix:
        return np.asarray(vars(self)["weights_"], dtype=np.float64)

    def _names(self) -> list[str]:
        return list(vars(self)["result_"]["variables"])


def _plain(value: object) -> Any:
    """A setting as Python's own number, list or truth value: grids of settings are often arrays of numpy."""
    return cast(Any, value).tolist() if isinstance(value, np.generic | np.ndarray) else value


def _round(entry: Mapping[str, Any]) -> dict[str, Any]:
    sites = entry["bytes"].values()
    return {
        **{key: entry[key] for key in ("round", "kind", "acyclicity", "edges")},
        **{f"bytes_{way}": sum(site[way]["serialised"] for site in sites) for way in ("up", "down")},
        "seconds": entry["local_s"] + entry["global_s"],
    }
