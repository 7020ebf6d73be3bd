"""The search for a plan's settings on data whose truth is known, or by what the sites tell of each other.

The folder of a search holds

trials.jsonl    the outcome of every trial, to continue after an interruption or with a larger grid
trials.csv      tidy: one row a configuration and seed
ranking.csv     one row a configuration, the best first
best.toml       the best configuration as a complete plan
"""

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbnsl.errors import DataError, DivergenceError, ResultError
from fedbnsl.files.durable import write_text
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.reading import NO_DICTIONARY
from fedbnsl_client.data.site_files import column_file, site_files
from fedbnsl_research.tables.csv_rows import as_csv
from fedbnsl_research.trials.harness import Row, megabytes_sent, site_datasets
from fedbnsl_research.trials.plan_digest import short_digest
from fedbnsl_research.trials.trials import Trial, run_trials
from fedbnsl_research.tuning.grid import Choice
from fedbnsl_research.tuning.held_out import held_out_row
from fedbnsl_research.tuning.ranking import HELD_OUT, Ranked, best_plan, rank, row_of, summary
from fedbnsl_workbench.plan_settings import for_sites
from fedbnsl_workbench.scoring.evaluation import learned_graph
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.scoring.reference import read_full_reference
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import read_tables
from fedbnsl_workbench.tables.synthetic import synthesise

EVALUATED_SEEDS = range(2, 12)
"""Seeds of the graphs on which the paper's tables and figures are reproduced."""


@dataclass(frozen=True)
class GeneratedData:
    """Tables drawn anew for every seed; see `synthetic.synthesise`."""

    nodes: int
    edges: float
    sites: int
    rows: int
    heterogeneous: float

    @property
    def identity(self) -> dict[str, Any]:
        """What tells the data of a trial from others, with its seed."""
        return {"generated": asdict(self)}

    def tables(self, seed: int) -> tuple[dict[str, Dataset], Mask]:
        """Tables by site, and the true graph."""
        made = synthesise(self.nodes, self.edges, self.sites, self.rows, seed, weight_variance=self.heterogeneous)
        return site_datasets(made), made.W != 0


@dataclass(frozen=True)
class FolderData:
    """The tables of a folder and a truth, if there is one, by the digest of what they held when the search began.

    The digest covers the files of columns and the dictionary, too, with which tables are read.
    """

    folder: Path
    truth: Path | None
    columns: tuple[str, ...]
    digest: str
    dictionary: Dictionary = field(default=NO_DICTIONARY, compare=False)

    @classmethod
    def of(
        cls, folder: Path, truth: Path | None, columns: tuple[str, ...], dictionary: Dictionary = NO_DICTIONARY
    ) -> "FolderData":
        """The folder as it is now; the tables are read and checked once, before any trial.

        Raises
        ------
        DataError, ResultError
            If a table or the truth cannot be used.
        """
        known = None if truth is None else truth.resolve()
        found = cls(folder.resolve(), known, columns, _digest(folder, truth, dictionary), dictionary)
        found.tables(0)
        return found

    @property
    def sites(self) -> int:
        """How many tables there are."""
        return len(site_files(self.folder))

    @property
    def identity(self) -> dict[str, Any]:
        """What tells the data of a trial from others: not the place, which may change."""
        return {"tables": self.digest}

    def tables(self, seed: int) -> tuple[dict[str, Dataset], Mask | None]:
        """Tables by site, and the true graph, if it is known; the same for every seed."""
        return _read_tables(self)


Data = GeneratedData | FolderData


@lru_cache(maxsize=1)
def _read_tables(data: FolderData) -> tuple[dict[str, Dataset], Mask | None]:
    """The tables and the truth, read once in each process."""
    tables = read_tables(site_files(data.folder), data.columns, dictionary=data.dictionary)
    variables = data.columns or next(iter(tables.values())).columns.variables
    reference = None if data.truth is None else read_full_reference(data.truth, variables)
    if _digest(data.folder, data.truth, data.dictionary) != data.digest:
        raise DataError(f"the tables in {data.folder} changed while settings were tuned on them; start again")
    return tables, reference


def _digest(folder: Path, truth: Path | None, dictionary: Dictionary) -> str:
    """Of the content of all tables and of the truth; with a dictionary of it and of the tables' files of columns."""
    whole = hashlib.sha256()
    tables = site_files(folder)
    beside = [(f"columns of {site}", column_file(path)) for site, path in tables.items()] if dictionary else []
    files = [
        *tables.items(),
        *((name, path) for name, path in beside if path),
        *([] if truth is None else [("truth", truth)]),
    ]
    for name, path in files:
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        whole.update(f"{name} {content}\n".encode())
    if dictionary:
        whole.update(f"dictionary {dictionary.model_dump_json()}\n".encode())
    return whole.hexdigest()


def tune(
    configurations: Sequence[tuple[Choice, Plan]],
    data: Data,
    seeds: Sequence[int],
    out: Path,
    *,
    metric: str,
    header: Sequence[str],
    console: Console,
    jobs: int = 1,
    dask: str | None = None,
) -> list[Ranked]:
    """Run what is missing of a search, write its folder and return the configurations, best first.

    Parameters
    ----------
    seeds
        Of the data, where it is generated, and of the noise of private plans.
    metric
        One of METRICS; with HELD_OUT every trial is one run a site, which leaves that site out.
    header
        Lines of comment above the best plan.
    jobs, dask
        See `run_trials`.

    Raises
    ------
    ResultError
        If every trial failed, or none has the metric: there is no best plan; the tables are written.
    FedbnslError
        As `run_trials`.
    """
    plans = [(choice, for_sites(plan, data.sites)) for choice, plan in configurations]
    if metric == HELD_OUT:
        for _, plan in plans:
            for_sites(plan, data.sites - 1)  # refused before the first trial, not in each of them
    trials = [trial_of(plan, data, seed, metric=metric) for _, plan in plans for seed in seeds]
    store, work = out / "trials.jsonl", partial(run_trial, data)
    outcomes = run_trials(work, trials, store, work="tune", title="tune", console=console, jobs=jobs, dask=dask)
    groups = [outcomes[k : k + len(seeds)] for k in range(0, len(outcomes), len(seeds))]
    rows = [
        {**choice, "seed": seed, **row_of(outcome)}
        for (choice, _), group in zip(plans, groups, strict=True)
        for seed, outcome in zip(seeds, group, strict=True)
    ]
    ranking = rank([summary(*plan, group, metric) for plan, group in zip(plans, groups, strict=True)], metric)
    write_text(out / "trials.csv", as_csv(rows))
    write_text(out / "ranking.csv", as_csv([{**r.as_row(k + 1), "metric": metric} for k, r in enumerate(ranking)]))
    best = ranking[0]
    if best.mean is None and any(r.undefined for r in ranking):
        raise ResultError(
            f"no run has a {metric}, so that there is no best plan: it is a quotient by zero for every graph",
            remedy="Rank by --metric shd, or try other candidates.",
        )
    if best.mean is None:
        raise ResultError(
            f"all {len(trials)} trials failed, so that there is no best plan; the first: {best.error}",
            remedy=f"See {out / 'trials.csv'} for every error; try other candidates.",
        )
    write_text(out / "best.toml", best_plan(best, header, metric))
    return ranking


def trial_of(plan: Plan, data: Data, seed: int, *, metric: str = "shd") -> Trial:
    """Only what a trial depends on, so that the same plan from a larger grid or under another name is found again."""
    settings = plan.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    # The digest includes the defaults: a program with other defaults must not reuse the outcome.
    digest = short_digest(plan.with_settings(name=Plan().name))
    kind = {"leaves_out": "each site in turn"} if metric == HELD_OUT else {}
    return {"plan": settings, "digest": digest, "data": data.identity, "seed": seed, **kind}


def run_trial(data: Data, trial: Trial) -> Sequence[Row]:
    """A simulated run (or one a site), scored. A divergence is an outcome of the settings, and is not tried again."""
    plan = Plan.parse(trial["plan"])
    tables, reference = data.tables(trial["seed"])
    noise_seed = None if plan.privacy is None else trial["seed"]
    if "leaves_out" in trial:
        try:
            return [held_out_row(plan, tables, noise_seed=noise_seed)]
        except DivergenceError as error:
            return [{"error": f"diverged: {error}"}]
    if reference is None:
        raise ResultError("there is no true graph to score against")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            result = simulate(plan, tables, Path(scratch, "run"), noise_seed=noise_seed)
        except DivergenceError as error:
            return [{"error": f"diverged: {error}"}]
    return [
        {
            **score(learned_graph(result), reference).as_dict(),
            "mb": megabytes_sent(result, "formula"),
            "mb_serialised": megabytes_sent(result, "serialised"),
            "seconds": result["seconds"]["total"],
            "error": "",
        }
    ]
