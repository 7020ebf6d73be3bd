"""The settings of a plan's [preparation]: how the sites make comparable columns of their tables."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedbnsl.plan.privacy_settings import Real

MOST_EM_ROUNDS = 60
"""Rounds of EM that a run has at most; it ends as soon as covariances change by less than their errors."""

NORMAL = 1.4826
"""A spread is so many median distances from the median: the standard deviation of normal values."""

BINS_AN_OCTAVE, FIRST_BIN, LAST_BIN = 4, 2, 400
"""Distances from the median, in spreads, are counted in bins: bin n from 2^(n / 4) on, the last one of all beyond.

Of values below the median, it is bin -n."""


class Preparation(BaseModel):
    """How a record becomes a row of the run: (x - centre) / scale, with public numbers or the site's own means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    intercept: Literal["site", "common", "none"] = Field(
        default="site",
        description="what is taken off each column: every site's own mean, which removes shifts between sites and "
        "stays there unless the plan tells means; one mean over all records; nothing",
    )
    scale: Literal["pooled", "none"] = Field(
        default="pooled",
        description="what each column is divided by: its standard deviation over the records of all sites, about what "
        "`intercept` takes off, so that units do not matter; nothing",
    )
    missing: Literal["em", "complete-cases", "refuse"] = Field(
        default="complete-cases",
        description="rows with a missing value in a used column: used, with means and covariances by maximum "
        "likelihood (EM: some more rounds if there are such rows; it assumes that values are missing at random); left "
        "out (the site counts them); or refused. Not used by a private run: with moments_rounds, what was released "
        "completes records; otherwise they are zeros",
    )
    outlying: Literal["missing", "keep"] = Field(
        default="keep",
        description="values of numbers that lie far apart from all others of their column, beyond a gap that no smooth "
        "distribution has, such as a slip of the decimal point: they count as missing, with the rows' other values "
        "used (only with missing = em, without privacy), and the result names them; or nobody looks for them",
    )
    missing_most: Annotated[Real, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="with complete-cases: largest share of rows that may be left out; beyond it a site refuses",
    )
    weighting: Literal["rows", "sites"] = Field(
        default="rows", description="weight of a site in means over sites: its rows, or one each"
    )

    def in_words(self, *, private: bool, moments: bool, tells_means: bool) -> Iterator[str]:
        """What is done to the tables, a clause each; `moments`: whether a private run releases moments."""
        noisy = "noisy " if private else ""
        yield {
            "site": f"every site takes its own {noisy}means off its columns "
            + ("(and tells them)" if tells_means else "(they stay there)"),
            "common": "all sites take off the same means, those over all records",
            "none": "no means are taken off",
        }[self.intercept]
        if self.scale == "pooled":
            yield f"columns are divided by {noisy}standard deviations over the records of all sites"
        if self.missing == "refuse":
            yield "a table with a missing value is refused"
        elif self.missing == "em":
            yield (
                "rows with a missing value are used: their sums are completed by the covariances of all sites, in up "
                f"to {MOST_EM_ROUNDS} more rounds (EM), which assumes that values are missing at random"
            )
            if self.outlying == "missing":
                yield "values that lie far apart from all others of their column count as missing, and are named"
        elif private and moments:
            yield (
                "what was released completes records with a missing value, which assumes that values are missing at "
                "random"
            )
        elif private:
            yield "a row with a missing value counts as zeros"
        else:
            yield f"rows with a missing value are left out, at most {self.missing_most:.0%} of them"
        if self.outlying == "missing" and (private or self.missing != "em"):
            yield "values that lie far apart from all others count like them (only missing = 'em' leaves them out)"
        yield "sites weigh as their rows" if self.weighting == "rows" else "every site has the same weight"

    @property
    def needs_variances(self) -> bool:
        """Whether the sites tell how much each column varies."""
        return self.scale == "pooled" or self.intercept == "common"
