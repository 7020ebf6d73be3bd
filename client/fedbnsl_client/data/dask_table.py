"""A Parquet table that the workers of a Dask cluster read: what comes from them are sums over rows, in a fixed order.

Of a table that a ledger counts, also a keyed tag of each record, by which the site knows it again; workers get the key.

Needs the extra `dask`. The workers have the same files under the same path, and the same version of fedbnsl. A part of
the table is some row groups of some files, cut by what the files say of themselves: the same files give the same parts,
and so the same bits. Nothing is kept between two sums but the files.

Scheduler and workers are the site's own: they run what they are sent, and exact sums pass between them. Beyond this
machine the connection must be TLS, as Dask's own configuration sets it up (distributed.comm.tls).
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib import import_module
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, cast

import numpy as np

import fedbnsl
from fedbnsl.errors import DataError, FedbnslError, SetupError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.cell_problems import CellProblems, UnreadableCellsError, words_have_a_remedy
from fedbnsl_client.data.checks import (
    Oddity,
    complete_rows,
    in_one_line,
    rows_with_values,
    without_huge,
    zeros_for_gaps,
)
from fedbnsl_client.data.dataset import MIN_ROWS, ChosenColumns, Dataset, TablePass, chosen_columns
from fedbnsl_client.data.mapped_array import Made, RowsElsewhere, Sums, added
from fedbnsl_client.data.reading import NO_DICTIONARY, SAME_NAMES, ColumnMap
from fedbnsl_client.data.repeats import NOT_COMPARED
from fedbnsl_client.data.sources.arrow_cells import codes_of_batches
from fedbnsl_client.data.sources.parquet_table import File, ParquetTable, batches_of, files_of, is_parquet, opened

_ENGINE = re.compile(r"dask(\+tls)?://([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})/?")
_PART_ROWS = 2**19
_CONNECT_S = 20.0
_POLL_S = 5.0
_ALONE_S = 30.0
_WAITING_A_WORKER = 4
_NOTHING_RELEASED = (
    "Nothing was released: noise is drawn at the site, after all sums. Under a policy, what was reserved in the ledger "
    "for this round stays spent, and is paid once more if the round is asked for again."
)

Result = TypeVar("Result")


class Chunk(NamedTuple):
    """Some row groups of a file, and the file's state when they were counted."""

    file: File
    row_groups: tuple[int, ...]
    state: Hashable


Part = tuple[Chunk, ...]


@dataclass(frozen=True)
class Recipe:
    """How the cells of a part become rows of values.

    Attributes
    ----------
    header, chosen, dictionary
        As in `Dataset.read`.
    steps
        What is done with a block of rows then, in this order.
    guarded
        As in `Dataset.read`.
    """

    header: Sequence[str]
    chosen: ChosenColumns
    dictionary: Dictionary
    steps: tuple[Callable[[Matrix], Matrix], ...] = ()
    guarded: bool = False

    def table_pass(self, origin: str, min_rows: int = MIN_ROWS) -> TablePass:
        """What turns codes into values, and counts them."""
        chosen = self.chosen
        return TablePass(
            origin, chosen.names, self.dictionary, min_rows=min_rows, absent=chosen.absent, guarded=self.guarded
        )

    def codes(self, part: Part, found: CellProblems) -> Iterator[Matrix]:
        """(rows, V) codes of a part.

        Raises DataError if a file is not as it was.
        """
        _require_same(part)
        yield from codes_of_batches(
            chain.from_iterable(
                batches_of(chunk.file, self.header, self.chosen.positions, chunk.row_groups) for chunk in part
            ),
            found,
            self.chosen.positions,
            self.chosen.readings,
        )
        _require_same(part)

    def rows(self, part: Part) -> Iterator[Matrix]:
        """(rows, d) values of a part, whose cells were found to be readable, or count as missing."""
        table = self.table_pass("")
        for codes in self.codes(part, CellProblems(self.header, "data row")):
            values = table.values(codes)
            yield self.after_steps(without_huge(values) if self.guarded else values)

    def after_steps(self, block: Matrix) -> Matrix:
        """A block of rows after all steps."""
        return reduce(lambda X, step: step(X), self.steps, block)

    def no_rows(self) -> Matrix:
        """A block without rows."""
        return self.after_steps(np.empty((0, len(self.table_pass("").columns))))


def _require_same(part: Part) -> None:
    for chunk in part:
        try:
            state = chunk.file.state
        except OSError as error:
            raise DataError(f"{chunk.file.path}: a Dask worker cannot read it: {error.strerror}") from None
        if state != chunk.state:
            raise DataError(f"{chunk.file.path}: the file changed since it was first read; start again")


# ---- what workers do -------------------------------------------------------------------------------------------------


def _version() -> str:
    return fedbnsl.__version__


def _counted(part: Part, *, recipe: Recipe, origin: str, min_rows: int) -> tuple[TablePass, CellProblems, int]:
    table, found, n = recipe.table_pass(origin, min_rows), CellProblems(recipe.header, "data row"), 0
    for codes in recipe.codes(part, found):
        table.counted(codes)
        n += len(codes)
    return table, found, n


def _summed(part: Part, *, recipe: Recipe, f: Callable[[Matrix], Sums]) -> Sums:
    blocks = recipe.rows(part)
    first = next(blocks, None)
    if first is None:  # a file without rows
        return f(recipe.no_rows())
    return reduce(added, map(f, chain([first], blocks)))


def _made(part: Part, *, recipe: Recipe, f: Callable[[Matrix], Made]) -> list[Made]:
    return [f(block) for block in recipe.rows(part)]


def _chosen(X: Matrix, *, order: tuple[int, ...]) -> Matrix:
    return np.ascontiguousarray(X[:, order])


def _some(part: Part, *, recipe: Recipe, n_rows: int) -> Matrix:
    blocks = [recipe.no_rows(), *recipe.rows(part)]
    step = max(sum(map(len, blocks)) // n_rows, 1)
    return np.concatenate([block[::step] for block in blocks])


# ---- what the participant does ---------------------------------------------------------------------------------------


class Cluster:
    """A connection to the scheduler of a Dask cluster."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def each(self, task: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """What the workers make of each part, in the order of the parts; few wait here at a time.

        Raises DataError as the task, or if the cluster fails.
        """
        waiting: deque[Any] = deque()
        with _said_in_words():
            limit = _WAITING_A_WORKER * max(sum(self._client.nthreads().values()), 1)
        for part in parts:
            with _said_in_words():
                waiting.append(self._client.submit(task, part, pure=False))
            if len(waiting) >= limit:
                yield self._result(waiting.popleft())
        while waiting:
            yield self._result(waiting.popleft())

    def _result(self, future: Any) -> Any:
        alone_s = 0.0
        while True:
            with _said_in_words():
                try:
                    return future.result(timeout=_POLL_S)
                except TimeoutError:
                    alone_s = 0.0 if self._client.nthreads() else alone_s + _POLL_S
            if alone_s >= _ALONE_S:
                raise DataError(
                    f"the Dask cluster has had no worker for {_ALONE_S:.0f} s; start some, and then again",
                    remedy=_NOTHING_RELEASED,
                )

    def require_workers(self) -> None:
        """Refuse a cluster without workers, or with those of another version.

        Raises DataError saying what to do.
        """
        with _said_in_words():
            found = set(self._client.run(_version).values())
        if not found:
            raise DataError("the Dask cluster has no workers: start some with `dask worker`")
        if found != {fedbnsl.__version__}:
            others = ", ".join(sorted(found - {fedbnsl.__version__}))
            raise DataError(f"Dask workers have fedbnsl {others}, and this is {fedbnsl.__version__}: install the same")


class DaskRows(RowsElsewhere):
    """The rows of a table that Dask workers read anew for every sum."""

    def __init__(self, cluster: Cluster, parts: Sequence[Part], recipe: Recipe, shape: tuple[int, int]) -> None:
        super().__init__(shape)
        self._cluster, self._parts, self._recipe = cluster, parts, recipe

    def summed(self, f: Callable[[Matrix], Sums]) -> Sums:
        """See `RowsElsewhere.summed`: blocks add up to parts, and parts to the sum."""
        return reduce(added, self._cluster.each(partial(_summed, recipe=self._recipe, f=f), self._parts))

    def each(self, f: Callable[[Matrix], Made]) -> Iterator[Made]:
        """See `RowsElsewhere.each`."""
        for of_part in self._cluster.each(partial(_made, recipe=self._recipe, f=f), self._parts):
            yield from of_part

    def some(self, n_rows: int) -> Matrix:
        """See `RowsElsewhere.some`."""
        found = self._cluster.each(partial(_some, recipe=self._recipe, n_rows=n_rows), self._parts[:1])
        return np.concatenate(list(found))

    def columns(self, order: Sequence[int]) -> Self:
        """See `RowsElsewhere.columns`."""
        return self._after(partial(_chosen, order=tuple(order)), (len(self), len(order)))

    def complete(self, n_rows: int) -> Self:
        """See `RowsElsewhere.complete`."""
        return self._after(complete_rows, (n_rows, self.shape[1]))

    def with_values(self, n_rows: int) -> Self:
        """See `RowsElsewhere.with_values`."""
        return self._after(rows_with_values, (n_rows, self.shape[1]))

    def with_zeros(self) -> Self:
        """See `RowsElsewhere.with_zeros`."""
        return self._after(zeros_for_gaps, self.shape)

    def after(self, step: Callable[[Matrix], Matrix]) -> Self:
        """See `RowsElsewhere.after`."""
        return self._after(step, self.shape)

    def _after(self, step: Callable[[Matrix], Matrix], shape: tuple[int, int]) -> Self:
        recipe = replace(self._recipe, steps=(*self._recipe.steps, step))
        return type(self)(self._cluster, self._parts, recipe, shape)


_WITHOUT = "Or leave --engine out: the table is then read on this machine."


@contextmanager
def connected(engine: str) -> Generator[Cluster]:
    """The cluster at dask://host:port, on this machine, or dask+tls://host:port, where TLS comes from Dask's settings.

    Raises SetupError if this is no such address. Raises DataError if the extra is not installed, or nobody answers.
    """
    address = scheduler_address(engine)
    try:
        distributed: Any = import_module("distributed")
        import_module("pyarrow")
    except ImportError:
        raise DataError("--engine needs Dask and pyarrow: pip install 'fedbnsl-site[dask]'", remedy=_WITHOUT) from None
    with ExitStack() as stack:
        try:
            client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError, TypeError) as error:
            why = "nobody answers" if isinstance(error, OSError) else "its TLS settings cannot be used"
            raise DataError(
                f"no connection to the Dask scheduler at {engine}: {why}",
                remedy=f"Start one with `dask scheduler`, and workers for it, or correct --engine. {_WITHOUT}",
            ) from None
        stack.callback(client.close)
        cluster = Cluster(client)
        cluster.require_workers()
        yield cluster


def scheduler_address(engine: str) -> str:
    """What Dask calls the address of --engine.

    Raises SetupError if it is none, or would leave this machine without TLS.
    """
    found = _ENGINE.fullmatch(engine)
    if not found:
        raise SetupError("--engine: write dask://host:port, or dask+tls://host:port")
    tls, host, port = found.groups()
    if tls:
        return f"tls://{host}:{port}"
    if not _is_loopback(host):
        raise SetupError(
            "--engine dask:// is for a scheduler on this machine: exact sums over the table would cross the network as "
            "plain text",
            remedy="Give Dask certificates (distributed.comm.tls in its settings) and use dask+tls://host:port.",
        )
    return f"tcp://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read(
    cluster: Cluster,
    path: Path,
    *,
    columns: Sequence[str] = (),
    dictionary: Dictionary = NO_DICTIONARY,
    mapping: ColumnMap = SAME_NAMES,
    min_rows: int = MIN_ROWS,
    guarded: bool = False,
) -> Dataset:
    """A Parquet file or folder, counted and checked by the workers as `Dataset.read` does it.

    Raises DataError, PlanError as `Dataset.read`; and if the table is no Parquet.
    """
    if dictionary.rows:
        raise DataError(
            f"{path}: {dictionary.rows.in_words()}; Dask workers hold parts of the table, over which a group may be "
            "spread",
            remedy="Leave out --engine: a table larger than memory is read and sorted by means of files.",
        )
    path = path.resolve()
    if not (path.is_dir() or (path.is_file() and is_parquet(path))):
        raise DataError(
            f"{path}: Dask workers read Parquet, one file or a folder; this is something else, or not there"
        )
    source = ParquetTable(path)
    header = source.header()
    chosen = chosen_columns(source.origin, header, columns, dictionary, mapping)
    recipe, parts = Recipe(header, chosen, dictionary, guarded=guarded), parts_of(path)
    table, problems, n = recipe.table_pass(source.origin, min_rows), CellProblems(header, "data row"), 0
    counting = partial(_counted, recipe=recipe, origin=source.origin, min_rows=min_rows)
    for of_part, found, n_rows in cluster.each(counting, parts):
        table.join(of_part)
        problems.join(found, n)
        n += n_rows
    unreadable: list[Oddity] = []
    if lines := problems.lines():
        text = f"{source.origin}: " + in_one_line(lines)
        if not guarded:
            with words_have_a_remedy(dictionary):
                raise UnreadableCellsError(text)
        unreadable.append(Oddity(None, f"{text}; they count as missing"))
    rows = DaskRows(cluster, parts, recipe, (n, len(table.columns)))
    # All that works on a table needs its shape and sums over its rows; what needs more says so.
    X = cast(Matrix, rows)
    odd = (*unreadable, *table.odd(), Oddity(None, NOT_COMPARED))
    return Dataset(table.columns, X, odd, table.gaps, table.dictionary, table.absent)


def parts_of(path: Path) -> list[Part]:
    """The table in parts of about as many rows as a worker reads at a time, in order; none is empty of row groups."""
    parts: list[Part] = []
    chunks: list[Chunk] = []
    n = 0
    for file in files_of(path):
        state = file.state
        with opened(file.path) as parquet:
            sizes = [parquet.metadata.row_group(k).num_rows for k in range(parquet.num_row_groups)]
        groups: list[int] = []
        for k, size in enumerate(sizes):
            groups.append(k)
            n += size
            if n >= _PART_ROWS:
                parts.append((*chunks, Chunk(file, tuple(groups), state)))
                chunks, groups, n = [], [], 0
        if groups:
            chunks.append(Chunk(file, tuple(groups), state))
    return [*parts, tuple(chunks)] if chunks or not parts else parts


@contextmanager
def _said_in_words() -> Generator[None]:
    """Turn failures of the cluster into a DataError; a worker's own words are told only where they are ours."""
    try:
        yield
    except (FedbnslError, TimeoutError):
        raise
    except OSError:
        raise DataError(
            "the connection to the Dask scheduler is lost; nothing more was sent. Start again", remedy=_NOTHING_RELEASED
        ) from None
    except Exception as error:
        raise DataError(
            f"a Dask worker failed ({type(error).__name__}): see its log. Is fedbnsl installed there, with the extra "
            "dask, and has it memory enough?",
            remedy=_NOTHING_RELEASED,
        ) from None
