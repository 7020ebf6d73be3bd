"""A federation and sites that are enrolled in it, as the tests of identity and transport need them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedbnsl.identity import certificates
from fedbnsl.identity.certificates import Name, common_name
from fedbnsl_client.site import identity
from fedbnsl_client.site.identity import Identity
from fedbnsl_server.identity import authority, enrolment_table
from fedbnsl_server.identity.enrolment import Federation

DAYS = 90


def make_federation(folder: Path, *, name: str = "lab", hosts: tuple[str, ...] = ("127.0.0.1",), port: int = 50051,
                    days: int = DAYS, ca_days: int = 1000) -> Federation:  # fmt: skip
    return Federation.create(folder, name=name, hosts=hosts, port=port, days=days, ca_days=ca_days)


def enrol(federation: Federation, folder: Path, site: str = "north", *, days: int = DAYS) -> Identity:
    asked = identity.request(folder, Name(federation.name, site))
    bundle = federation.approve(asked, days=days)
    return identity.enrol(folder, bundle, expected_fingerprint=federation.fingerprint)


@contextmanager
def clock_off(*modules: ModuleType, by: timedelta) -> Iterator[None]:
    """Within, the clock that these modules look at is off."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + by

    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "datetime", Shifted)
        yield


def enrol_at(federation: Federation, folder: Path, site: str = "north", *, days: int, by: timedelta) -> Identity:
    """A site that was enrolled when the clocks showed another time; its certificate may be over by now."""
    with clock_off(enrolment_table, authority, certificates, by=by):
        return enrol(federation, folder, site, days=days)


def request_pem(key: certificates.PrivateKey, *uris: str, extra: tuple[x509.ExtensionType, ...] = (),
                names: tuple[x509.GeneralName, ...] = ()) -> bytes:  # fmt: skip
    """A certificate request with whatever anybody may ask for."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(common_name("anybody"))
    wanted = [*map(x509.UniformResourceIdentifier, uris), *names]
    if wanted:
        builder = builder.add_extension(x509.SubjectAlternativeName(wanted), critical=False)
    for extension in extra:
        builder = builder.add_extension(extension, critical=True)
    return certificates.pem(builder.sign(key, hashes.SHA256()))
