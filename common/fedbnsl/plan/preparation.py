"""The settings of a plan's [preparation]: how the sites make comparable columns of their tables."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedbnsl.plan.privacy_settings import Real


class Preparation(BaseModel):
    """How a record becomes a row of the run: (x - centre) / scale, with public numbers or the site's own means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    intercept: Literal["site", "common", "none"] = Field(
        default="site",
        description="what is taken off each column: every site's own mean, which never leaves it and removes shifts "
        "between sites; one mean over all records; nothing",
    )
    scale: Literal["pooled", "none"] = Field(
        default="pooled",
        description="what each column is divided by: its standard deviation over the records of all sites, about what "
        "`intercept` takes off, so that units do not matter; nothing",
    )
    missing: Literal["complete-cases", "refuse"] = Field(
        default="complete-cases",
        description="rows with a missing value in a used column: left out (the site counts them), or refused",
    )
    missing_most: Annotated[Real, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="largest share of rows that may be left out for missing values; beyond it a site refuses",
    )
    weighting: Literal["rows", "sites"] = Field(
        default="rows", description="weight of a site in means over sites: its rows, or one each"
    )

    @property
    def needs_variances(self) -> bool:
        """Whether the sites tell how much each column varies."""
        return self.scale == "pooled" or self.intercept == "common"
