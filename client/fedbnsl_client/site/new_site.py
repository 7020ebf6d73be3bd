"""What a site's folder is made from."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NewSite:
    """The name of a site, its first table, and what the policy shall allow."""

    site: str
    data: Path  # kept in the policy relative to the folder if it lies within it
    dataset_id: str
    max_epsilon: float
    columns: tuple[str, ...] = ()
    # dictionary, column_map: copied into the folder: what the variables are, and what is different here; None: those
    # that are in the folder already, if any
    dictionary: Path | None = None
    column_map: Path | None = None
    coordinators: tuple[str, ...] = ("127.0.0.1", "localhost")
    public: bool = False
    max_delta: float | None = None  # None: 1 / rows^2
    max_epsilon_per_run: float | None = None  # None: all of max_epsilon
    max_epsilon_against_all: float | None = None  # None: plans with secure aggregation are refused
