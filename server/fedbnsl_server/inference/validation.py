"""How well the learned network describes the rows of each site: what the sites have told of one network."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from fedbnsl.network.sums import Both, Sums
from fedbnsl_server.inference.left_out import LeftOut


@dataclass(frozen=True, eq=False)
class Validation:
    """Sums by site and variable.

    Attributes
    ----------
    network
        That they are of, as JSON.
    sites
        By site, the sums of each variable of the network, in the order of its families.
    left_out
        By variable and site, how well numbers of the other sites describe it there; see `inference.left_out`.
    """

    network: str
    sites: Mapping[str, Mapping[str, Both]]
    left_out: Mapping[str, Mapping[str, LeftOut]] = field(default_factory=dict[str, Mapping[str, LeftOut]])

    def content(self) -> dict[str, Any]:
        """As JSON has it."""
        sites = {
            site: {
                name: [{**asdict(one), "counts": one.counts.tolist(), "numbers": one.numbers.tolist()} for one in both]
                for name, both in told.items()
            }
            for site, told in self.sites.items()
        }
        return {"network": self.network, "sites": sites, "left_out": self.left_out}

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Self:
        """What `content` has made."""
        sites = {
            site: {name: Both(*map(_sums, both)) for name, both in told.items()}
            for site, told in content["sites"].items()
        }
        told = {name: {site: LeftOut(*one) for site, one in of.items()} for name, of in content["left_out"].items()}
        return cls(content["network"], sites, told)

    def without(self, sites: Iterable[str]) -> Self:
        """What the other sites have told."""
        gone = set(sites)
        return replace(self, sites={site: told for site, told in self.sites.items() if site not in gone}, left_out={})


def _sums(one: Mapping[str, Any]) -> Sums:
    counts, numbers = np.array(one["counts"], dtype=np.int64), np.array(one["numbers"], dtype=np.float64)
    return Sums(one["rows"], one["left_out"], one["log_likelihood"], one["own"], counts, numbers)
