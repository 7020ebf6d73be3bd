"""Rows of a table that belong together, such as the visits of a patient: what is made of them before a run.

The data dictionary says it, since every site must do the same. The columns that tell which rows belong together, and in
which order, are read at the site and never become variables.

    [patient]
    kind = "group"
    within = "between"
    [visit_date]
    kind = "time"
    lags = 1

A time may also be a variable, so that what all groups do alike as time goes by makes no edges: `trend = true`.
"""

from dataclasses import dataclass
from typing import Literal

Within = Literal["between", "within", "rows"]

LAG = "@-1"
"""Ends the name of a variable one row before in its group."""

TREND, FIXED, BEFORE, PRESENT = -1, 0, 1, 2
"""Slices of time: nothing of a later slice causes anything of an earlier one. Time itself comes first."""


@dataclass(frozen=True)
class RowGroups:
    """What a data dictionary says of rows that belong together.

    Attributes
    ----------
    group
        Name of the column whose equal cells make a group; empty: none, all rows are one series if there is a time.
    time
        Name of the column that orders the rows of a group; empty: none.
    within
        What is made of the rows of a group.
    lags
        How many rows before are beside each row.
    """

    group: str = ""
    time: str = ""
    within: Within = "rows"
    lags: int = 0

    def __bool__(self) -> bool:
        return bool(self.group or self.time)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that are read and are no variables: the group first."""
        return tuple(name for name in (self.group, self.time) if name)

    @property
    def averages(self) -> bool:
        """Whether a record is the mean over the rows of a group, so that an indicator may lie between 0 and 1."""
        return bool(self.group) and self.within == "between"

    @property
    def keeps_rows(self) -> bool:
        """Whether a group has several records, which depend on each other otherwise than by the row before."""
        return bool(self.group) and self.within == "rows" and not self.lags

    @property
    def one_record_a_group(self) -> bool:
        """Whether nobody who is in one group only has more than one record."""
        return not self or self.averages or not (self.group or self.lags)

    def in_words(self, *, all_count: bool = False) -> str:
        """What is made of the rows, for people; `all_count`: of a group that is one record, all rows and not a mean."""
        belong = f"rows with the same {self.group!r}" if self.group else f"rows in the order of {self.time!r}"
        if self.lags:
            return f"{belong} follow each other in time: beside each row stands the one before"
        mean = "what they tell on average" if all_count else "the mean of each column"
        return (
            belong
            + {
                "between": f" are one record: {mean}",
                "within": " are compared with each other: deviations from their means count",
                "rows": " stay records of their own",
            }[self.within]
        )
