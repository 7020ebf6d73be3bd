"""The answer to a site's certificate request: one TOML file, readable for people, which `enrol` imports."""

from dataclasses import asdict, dataclass

import tomli_w
from cryptography import x509

from fedbnsl.console.shown import shown
from fedbnsl.errors import IdentityError
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.identity.certificates import read_certificate

_REMEDY = "Nothing was changed. Enrol with the file as `coordinator approve` wrote it: participant enrol FOLDER BUNDLE."
_HEADER = "# A site's place in a federation. Nothing here is secret: the key never left the site.\n"


@dataclass(frozen=True)
class Bundle:
    """Certificate and CA as PEM, and where the coordinator is (host:port)."""

    federation: str
    site: str
    coordinator: str
    certificate: str
    ca: str

    def to_toml(self) -> str:
        """The file; `from_toml` reads it back."""
        return _HEADER + tomli_w.dumps(asdict(self), multiline_strings=True)

    @classmethod
    def from_toml(cls, text: str, *, origin: str) -> "Bundle":
        """A bundle from its file. Raises IdentityError if it is not a bundle."""
        try:
            values = parse_toml(text)
            if set(values) != set(cls.__dataclass_fields__) or not all(isinstance(one, str) for one in values.values()):
                raise ValueError("entries are missing or unknown")
            bundle = cls(**values)
            if any(shown(name) != name for name in (bundle.federation, bundle.site, bundle.coordinator)):
                raise ValueError("a name is too long or cannot be printed")
        except ValueError as error:
            text = f"{origin} is not a bundle made by `coordinator approve`: {error}"
            raise IdentityError(text, remedy=_REMEDY) from None
        for text in (bundle.certificate, bundle.ca):  # refused here rather than at the first use
            read_certificate(text.encode(), origin=origin)
        return bundle

    @property
    def site_certificate(self) -> x509.Certificate:
        """The site's certificate."""
        return read_certificate(self.certificate.encode(), origin="the bundle's `certificate`")

    @property
    def ca_certificate(self) -> x509.Certificate:
        """The certificate of the federation's authority."""
        return read_certificate(self.ca.encode(), origin="the bundle's `ca`")
