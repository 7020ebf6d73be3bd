"""One sheet with the fingerprints of all sites' keys, and a short digest of it to read out by telephone.

The coordinator writes the sheet, and the coordinator is whom the fingerprints protect against. So the sheet alone is
worth nothing: each site finds its own line on it (`participant peers --import` does), and the people of the sites read
the digest to each other. Sheets with one digest are the same, and every line was looked at by the site that it is of.

    federation = "heart"
    authority = "AB:..."
    day = "2026-11-29"

    [sites]
    north = "CD:..."
"""

import hashlib
import json
from collections.abc import Mapping

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from fedbnsl.errors import SetupError
from fedbnsl.files.toml_text import parse_toml

_DOMAIN = "fedbnsl sheet of sites/1"
_BYTES = 20  # two sheets with one digest take 2^80 attempts
_HEADER = """\
# The sites of a federation and the fingerprints of their keys, written by the coordinator. By itself it is worth
# nothing. At each site: fedbnsl participant peers FOLDER --import THIS-FILE, and read the digest that it shows to the
# people of the other sites, not to the coordinator's.
"""


class RosterSheet(BaseModel):
    """The sheet."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    federation: str
    authority: str  # fingerprint of its certificate
    day: str
    sites: Mapping[str, str]  # fingerprints of their keys

    @property
    def digest(self) -> str:
        """40 hexadecimal digits in groups of four, of everything but the day."""
        text = json.dumps([_DOMAIN, self.federation, self.authority, sorted(self.sites.items())])
        digits = hashlib.sha256(text.encode()).hexdigest()[: 2 * _BYTES].upper()
        return " ".join(digits[k : k + 4] for k in range(0, len(digits), 4))

    def to_text(self) -> str:
        """The file; `from_text` reads it back."""
        return f"{_HEADER}# digest: {self.digest}\n{tomli_w.dumps(self.model_dump())}"

    @classmethod
    def from_text(cls, text: str, *, origin: str) -> "RosterSheet":
        """A sheet from its file. Raises SetupError if it is none."""
        try:
            return cls.model_validate(parse_toml(text))
        except (ValidationError, ValueError):
            raise SetupError(
                f"{origin} is not a sheet of sites", remedy="Take the file as `fedbnsl coordinator roster` wrote it."
            ) from None


def same_digest(one: str, other: str) -> bool:
    """Whether two digests are equal, ignoring blanks and case."""
    return "".join(one.split()).upper() == "".join(other.split()).upper()
