"""The settings of a private run: its budget and how it is split. `fedbnsl.privacy.calibration` derives the noise."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fedbnsl.plan.limits import LARGEST_SQUARE, LEAST_SPREAD


@dataclass(frozen=True)
class Unit:
    """What a setting counts or is measured in, noted in its type."""

    name: str


# Strict, as in the plan: `epsilon = true` is a mistake, not a number.
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Real, Field(gt=0)]
Share = Annotated[Real, Field(gt=0, lt=1)]


def _within_limits(value: float) -> float:
    if not LEAST_SPREAD**2 <= value <= LARGEST_SQUARE:
        raise ValueError(f"must lie between {LEAST_SPREAD**2:g} and {LARGEST_SQUARE:g}")
    return value


# As wide as the squares of a table, and far from the limits of floating point: an underflow would understate a
# sensitivity.
Scale = Annotated[Real, Field(gt=0), AfterValidator(_within_limits)]


_SQUARES = Unit("squared units")

_SMALLEST_DELTA = 1e-100


class Privacy(BaseModel):
    """How much privacy a person's records may lose in a run (replaced by others), and how the budget is used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: Real = Field(ge=1e-6, le=1000, description="epsilon of the whole run, for each site's table (required)")
    delta: Real = Field(default=0.0, ge=0, lt=1, description="delta of that guarantee; 0: 1 / rows^2 at each site")
    sites_per_person: int = Field(
        default=1,
        strict=True,
        ge=1,
        le=10_000,
        description="most sites (k) that may have a record of one person: epsilon holds for somebody at all of them, "
        "for which there is more noise; more than 1 takes a delta",
    )
    persons_by: Literal["means", "rows"] = Field(
        default="means",
        description="what counts of a person who is one record (kind 'group', within = 'between' in the dictionary): "
        "the products of the means of the rows, or the mean of the products of all rows, clipped as one",
    )
    clip: Annotated[Scale, _SQUARES] = Field(
        default=10.0, description="clipping threshold of a record's gradient (C), in squared units of the variables"
    )
    smoothness: Literal["estimated", "public", "exact"] = Field(
        default="estimated",
        description="second moments: estimated (privately, charged), public (declared here) or exact "
        "(uncharged: no guarantee, for public data only)",
    )
    feature_bounds: Annotated[tuple[Scale, ...], _SQUARES] = Field(
        default=(),
        description="estimated: bound on each variable's square, from public knowledge; one for all, or one a variable",
    )
    second_moments: Annotated[tuple[Scale, ...], _SQUARES] = Field(
        default=(),
        description="public: each variable's mean square, from public knowledge; one for all, or one a variable",
    )
    smoothness_share: Share = Field(default=0.2, description="estimated: share of the budget for the second moments")
    selection_share: Share = Field(default=0.5, description="share of a step's budget for choosing the coordinate")
    moments_share: Share = Field(
        default=0.7, description="moments_rounds: share of the budget that is left after the second moments"
    )
    own_means_share: Share = Field(
        default=0.15,
        description="secure_aggregation with [preparation]: share of a moments round for the means a site takes off",
    )
    moments_norm_bound: Scale = Field(
        default=0.55,
        description="moments_rounds: scaled residuals of a record are clipped to this norm, times sqrt(variables)",
    )
    secure_aggregation: bool = Field(
        default=False,
        strict=True,
        description="moments_rounds without ADMM rounds: the coordinator sees sums over all sites only, and the sites "
        "share the noise; takes a delta, at least three sites, and all of them in every round",
    )
    colluding: int = Field(
        default=0,
        strict=True,
        ge=0,
        le=10_000,
        description="secure_aggregation: sites (t) that may tell the coordinator all they know without breaking the "
        "guarantee of the others; 0: a quarter of the sites, at least 1",
    )
    secure_aggregation_retries: int = Field(
        default=1,
        strict=True,
        ge=0,
        le=100,
        description="secure_aggregation: sites that a run may lose; for each of them one round is asked again of the "
        "others, with fresh noise, which the privacy cost includes; a lost site counts as one of the colluding ones",
    )
    row_norm_bound: Annotated[Scale, Unit("units")] = Field(
        default=10.0, description="noisy-covariance: longer records are clipped to this norm, in the variables' unit"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0.0 < self.delta < _SMALLEST_DELTA:
            raise ValueError(f"delta = {self.delta!r}: must be 0 (1 / rows^2) or at least {_SMALLEST_DELTA:g}")
        if self.smoothness == "public" and not self.second_moments:
            raise ValueError("second_moments = []: must be given for smoothness = 'public'")
        if self.secure_aggregation and not self.delta:
            raise ValueError(
                "delta = 0.0: must be given with secure_aggregation: the sites share one noise, none has its own"
            )
        if self.sites_per_person > 1 and not self.delta:
            raise ValueError(
                f"delta = 0.0: must be given with sites_per_person = {self.sites_per_person}: somebody at several "
                "sites has one guarantee, whatever the rows of each"
            )
        if self.colluding and not self.secure_aggregation:
            raise ValueError(f"colluding = {self.colluding}: must be 0 without secure_aggregation")
        return self

    @property
    def retries(self) -> int:
        """Rounds that may be asked again; 0 without secure aggregation."""
        return self.secure_aggregation_retries if self.secure_aggregation else 0

    def residual_norm_bound(self, n_variables: int) -> float:
        """R, the norm that a record's scaled residuals are clipped to."""
        return self.moments_norm_bound * math.sqrt(n_variables)
