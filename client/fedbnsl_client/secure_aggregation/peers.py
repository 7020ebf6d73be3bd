"""Which other sites are real: peers.toml in a site's folder, the fingerprints that its operator has confirmed.

The coordinator signs all certificates, so that it could invent sites. People compare fingerprints in another way.
"""

from collections.abc import Mapping
from pathlib import Path

import tomli_w
from pydantic import TypeAdapter, ValidationError

from fedbnsl.errors import SetupError
from fedbnsl.files import durable
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name

_FILE = "peers.toml"
_DIGITS = 64  # of a SHA-256


def confirmed(folder: Path) -> Mapping[str, str]:
    """Fingerprints of the keys of other sites' certificates, by site; empty: nobody is confirmed.

    Raises SetupError if the file cannot be read.
    """
    path = folder / _FILE
    try:
        found = parse_toml(path.read_text(encoding="utf-8"))
        return TypeAdapter(dict[str, str]).validate_python(found.get("confirmed", {}), strict=True)
    except FileNotFoundError:
        return {}
    except ValidationError:
        raise SetupError(f'{path}: expected [confirmed] with lines such as site-2 = "AB:CD:..."') from None
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from None


def confirm(folder: Path, site: str, fingerprint: str) -> None:
    """Note that the key of this fingerprint is that of a real site; another one of the same site is replaced.

    Raises SetupError if the name or the fingerprint cannot be one, or it is that of another site.
    """
    if not is_site_name(site):
        raise SetupError(f"site {site!r}: use {SITE_NAME_RULE}")
    digits = fingerprint.replace(":", "").replace(" ", "").upper()
    if len(digits) != _DIGITS or not set(digits) <= set("0123456789ABCDEF"):
        raise SetupError(
            f"fingerprint {fingerprint!r}: expected the SHA-256 of the key of a site's certificate, {_DIGITS} "
            "hexadecimal digits, as `fedbnsl participant peers` prints it there"
        )
    shown = ":".join(digits[k : k + 2] for k in range(0, _DIGITS, 2))
    known = confirmed(folder)
    for other, its in known.items():
        if other != site and its == shown:
            raise SetupError(
                f"that is the fingerprint of site {other!r}; two sites never have one key",
                remedy=f"If {other} was wrong: fedbnsl participant peers FOLDER --forget {other}",
            )
    _write(folder, {**known, site: shown})


def forget(folder: Path, site: str) -> None:
    """Do not rely on a site any more. Raises SetupError if it was not confirmed."""
    known = dict(confirmed(folder))
    if site not in known:
        raise SetupError(f"site {site!r} is not among the confirmed ones ({', '.join(known) or 'none'})")
    del known[site]
    _write(folder, known)


def _write(folder: Path, known: Mapping[str, str]) -> None:
    durable.write_text(folder / _FILE, tomli_w.dumps({"confirmed": dict(sorted(known.items()))}))
