"""Options that several commands of a site share; a group of them reaches its command as one value."""

from __future__ import annotations

import csv
import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedbnsl.errors import SetupError
from fedbnsl.identity.passphrase import NOBODY_KNOWS, Passphrases, passphrase_option

if TYPE_CHECKING:
    from fedbnsl_client.data.dask_table import Cluster
    from fedbnsl_client.data.dataset import Dataset
    from fedbnsl_client.site.identity import Link

PATH = click.Path(path_type=Path)
FOLDER = click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _numbers(_: click.Context, __: click.Parameter, given: str | None) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(one) for one in (given or "").split(",") if given}))
    except ValueError:
        raise click.BadParameter(f"{given!r}: expected numbers with commas between them, such as 2,3") from None


takes_blocks = click.option(
    "--blocks",
    metavar="N,N",
    callback=_numbers,
    help="Of a table that has grown: which blocks of its records a private run reads, and is charged to; `participant "
    "ledger` shows them.  [default: all]",
)


def gathered(name: str, make: Callable[..., object], *options: Decorator) -> Decorator:
    """Give a command these options; its function gets `make`, whose parameters they are, of them as `name`."""
    fields = inspect.signature(make).parameters

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_value(*args: object, **given: object) -> object:
            value = make(**{field: given.pop(field) for field in fields})
            return command(*args, **{name: value}, **given)

        decorated: Callable[..., Any] = with_value
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def column_names(columns: str | None, *, option: str = "--columns") -> list[str]:
    """The names in the value of an option; a name that holds a comma is in quotation marks, as in a CSV file."""
    if columns is None:
        return []
    from fedbnsl.protocol.messages import composed

    names = [composed(name.strip()) for name in next(csv.reader([columns], skipinitialspace=True))]
    if not names or not all(names):
        raise SetupError(f"{option} {columns!r}: a name is empty", remedy="Separate names by commas.")
    return names


class DescribedBy(NamedTuple):
    """Files that say what the variables of a table are, and what is different at this site."""

    dictionary: Path | None = None
    column_map: Path | None = None


AS_IN_THE_FOLDER = DescribedBy()

described_options: tuple[Decorator, ...] = (
    click.option(
        "--dictionary", type=PATH, help="The consortium's data dictionary, a TOML file: what each variable is."
    ),
    click.option(
        "--column-map",
        type=PATH,
        help="TOML file, private to this site: what is different here from the dictionary, such as names of columns, "
        "units and how levels are written.",
    ),
)


@dataclass(frozen=True)
class TableOptions:
    """How a table is read."""

    columns: str | None
    min_rows: int
    max_file_mib: int | None
    dictionary: Path | None
    column_map: Path | None

    @property
    def names(self) -> list[str]:
        """The columns to use; empty: all."""
        return column_names(self.columns)

    @property
    def max_file_bytes(self) -> int | None:
        """None: a file of any size is read."""
        return None if self.max_file_mib is None else self.max_file_mib * 2**20

    def how(self) -> dict[str, Any]:
        """As `Dataset.read` and `dask_table.read` take it."""
        from fedbnsl_client.site.folder import described

        what, mapping = described(None, self.dictionary, self.column_map)
        return {"columns": self.names, "dictionary": what, "mapping": mapping, "min_rows": self.min_rows}

    def read(self, data: Path, *, warn: bool = True) -> Dataset:
        """Read a table here."""
        from fedbnsl_client.data.dataset import Dataset

        return Dataset.read(data, **self.how(), max_file_bytes=self.max_file_bytes, warn=warn)


takes_engine = click.option(
    "--engine",
    help="A Dask scheduler whose workers read the table, which is Parquet that they find under the same path: "
    "dask://host:port on this machine, dask+tls://host:port elsewhere.",
)


@contextmanager
def cluster_of(engine: str | None) -> Generator[Cluster | None]:
    """The cluster of --engine; None: tables are read here."""
    if engine is None:
        yield None
        return
    from fedbnsl_client.data.dask_table import connected

    with connected(engine) as cluster:
        yield cluster


columns_option = click.option("--columns", help="Comma-separated names of the columns to use.  [default: all]")
min_rows_option = click.option(
    "--min-rows", type=click.IntRange(min=2), default=20, show_default=True, help="Refuse a table with fewer rows."
)
takes_table = gathered(
    "table_options",
    TableOptions,
    columns_option,
    min_rows_option,
    click.option(
        "--max-file-mib",
        type=click.IntRange(min=1),
        help="Refuse a larger file, in MiB.  [default: any size is read]",
    ),
    *described_options,
)


@dataclass(frozen=True)
class LinkOptions:
    """Which coordinator to call, and how."""

    coordinator: str | None = None  # host:port; None: the one that enrolled the site
    insecure: bool = False
    federation: str | None = None  # whose identity is shown; None: the only one
    passphrases: Passphrases = NOBODY_KNOWS

    def link(self, folder: Path | None) -> Link:
        """The connection of the site in a folder; see `identity.link`."""
        from fedbnsl_client.site import identity

        return identity.link(
            folder,
            self.coordinator,
            insecure=self.insecure,
            federation=self.federation,
            passphrases=self.passphrases,
        )

    def whom(self, folder: Path) -> Link:
        """The coordinator that `link` calls, without credentials: also while the site's certificate is not valid."""
        from fedbnsl_client.site import identity

        if self.insecure:
            return self.link(folder)
        return identity.whom(folder, self.coordinator, federation=self.federation, passphrases=self.passphrases)

    def place(self, folder: Path) -> Path:
        """Where identity and confirmed peers are; the folder itself for plaintext."""
        from fedbnsl_client.site import identity

        return folder if self.insecure else identity.place_of(folder, self.federation)


_COORDINATOR = click.argument("coordinator", metavar="[HOST:PORT]", required=False)


federation_option = click.option(
    "--federation", metavar="NAME", help="Which federation, where FOLDER is enrolled in several."
)


def takes_link(insecure: str, coordinator: Decorator = _COORDINATOR) -> Decorator:
    """Give a command the coordinator, --insecure with this help, and --passphrase-file, as `link_options`."""
    plaintext = click.option("--insecure", is_flag=True, help=insecure)
    return gathered("link_options", LinkOptions, coordinator, plaintext, federation_option, passphrase_option)
