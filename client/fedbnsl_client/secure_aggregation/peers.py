"""Which other sites are real: peers.toml in a site's folder, the fingerprints that its operator has confirmed.

The coordinator signs all certificates, so that it could invent sites. People compare fingerprints in another way. A key
that a confirmed one has signed takes its place (`followed`).

    [confirmed]
    north = "CD:..."

    [[followed]]          # north had confirmed AB, which signed CD
    site = "north"
    former = "AB:..."
    fingerprint = "CD:..."
    at = "2026-11-29"
"""

import fcntl
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from fedbnsl.errors import SetupError
from fedbnsl.files import durable
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name

_FILE = "peers.toml"
_DIGITS = 64  # of a SHA-256
_JOINED_BEFORE = timedelta(days=30)


class Followed(BaseModel):
    """One key that took the place of another, which had signed it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    site: str
    former: str
    fingerprint: str
    at: str  # the day

    @property
    def is_recent(self) -> bool:
        """Whether a site may have joined a run before this, that has not begun yet."""
        try:
            return datetime.now(UTC).date() - date.fromisoformat(self.at) < _JOINED_BEFORE
        except ValueError:
            return False


class Peers(BaseModel):
    """Fingerprints of the keys of other sites' certificates, by site, and what took the place of what."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    confirmed: dict[str, str] = {}
    followed: list[Followed] = []

    @property
    def former(self) -> Mapping[str, Mapping[str, bool]]:
        """Keys that confirmed ones have followed, by site, and whether lately: a run may still begin with them."""
        return {
            site: {one.former: one.is_recent for one in self.followed if one.site == site} for site in self.confirmed
        }

    def with_confirmed(self, site: str, fingerprint: str) -> "Peers":
        """These, with a site's key, of 64 digits. Raises SetupError if it is that of another site."""
        for other, its in self.confirmed.items():
            if other != site and its == fingerprint:
                raise SetupError(
                    f"that is the fingerprint of site {other!r}; two sites never have one key",
                    remedy=f"If {other} was wrong: fedbnsl participant peers FOLDER --forget {other}",
                )
        same = self.confirmed.get(site) == fingerprint
        # Another key that people told: nothing is known of the one before, which may have been lost to somebody.
        followed = [one for one in self.followed if one.site != site or same]
        return Peers(confirmed={**self.confirmed, site: fingerprint}, followed=followed)


def path_in(folder: Path) -> Path:
    """The file of a site's folder; it may not be there."""
    return folder / _FILE


def read(folder: Path) -> Peers:
    """What the file says; nobody is confirmed without one. Raises SetupError if it cannot be read."""
    path = path_in(folder)
    try:
        return Peers.model_validate(parse_toml(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Peers()
    except ValidationError:
        raise SetupError(f'{path}: expected [confirmed] with lines such as site-2 = "AB:CD:..."') from None
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from None


def confirmed(folder: Path) -> Mapping[str, str]:
    """Fingerprints by site; see `read`."""
    return read(folder).confirmed


def confirm(folder: Path, site: str, fingerprint: str) -> None:
    """Note that the key of this fingerprint is that of a real site; another one of the same site is replaced.

    Raises SetupError if the name or the fingerprint cannot be one, or it is that of another site.
    """
    shown = in_pairs(fingerprint)
    if not is_site_name(site):
        raise SetupError(f"site {site!r}: use {SITE_NAME_RULE}")
    _change(folder, lambda known: known.with_confirmed(site, shown))


def confirm_all(folder: Path, keys: Mapping[str, str]) -> list[str]:
    """Note that these keys are those of real sites; return the sites that were not confirmed before.

    Raises SetupError, and notes none, if one cannot be a fingerprint or is not the one that was confirmed.
    """
    shown = {site: in_pairs(fingerprint) for site, fingerprint in keys.items()}
    fresh: list[str] = []

    def change(known: Peers) -> Peers:
        for site, key in shown.items():
            if known.confirmed.get(site, key) != key:
                raise SetupError(
                    f"site {site!r}: the sheet has the key {key}, confirmed was {known.confirmed[site]}; nobody was "
                    "confirmed",
                    remedy=f"Ask the people of {site} by telephone. If they have a new key: fedbnsl participant peers "
                    f"FOLDER --confirm {site} FINGERPRINT, then import the sheet again.",
                )
        fresh.extend(site for site in shown if site not in known.confirmed)
        for site, key in shown.items():
            known = known.with_confirmed(site, key)
        return known

    _change(folder, change)
    return fresh


def in_pairs(fingerprint: str) -> str:
    """A fingerprint as this program writes it, AB:CD:... Raises SetupError if it cannot be one."""
    digits = fingerprint.replace(":", "").replace(" ", "").upper()
    if len(digits) != _DIGITS or not set(digits) <= set("0123456789ABCDEF"):
        raise SetupError(
            f"fingerprint {fingerprint!r}: expected the SHA-256 of the key of a site's certificate, {_DIGITS} "
            "hexadecimal digits, as `fedbnsl participant peers` prints it there"
        )
    return ":".join(digits[k : k + 2] for k in range(0, _DIGITS, 2))


def note_followed(folder: Path, site: str, former: str, fingerprint: str) -> None:
    """Let a key take the place of the confirmed one, which had signed it; nothing if that is not confirmed any more."""

    def change(known: Peers) -> Peers:
        if known.confirmed.get(site) != former:
            return known
        one = Followed(site=site, former=former, fingerprint=fingerprint, at=f"{datetime.now(UTC):%Y-%m-%d}")
        return Peers(confirmed={**known.confirmed, site: fingerprint}, followed=[*known.followed, one])

    _change(folder, change)


def forget(folder: Path, site: str) -> None:
    """Do not rely on a site any more. Raises SetupError if it was not confirmed."""

    def change(known: Peers) -> Peers:
        if site not in known.confirmed:
            raise SetupError(f"site {site!r} is not among the confirmed ones ({', '.join(known.confirmed) or 'none'})")
        left = {one: its for one, its in known.confirmed.items() if one != site}
        return Peers(confirmed=left, followed=[one for one in known.followed if one.site != site])

    _change(folder, change)


def _change(folder: Path, change: Callable[[Peers], Peers]) -> None:
    """Change what the file says, one process at a time: the agent does so, too, in each of its runs."""
    with (folder / f"{_FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read(folder)
        after = change(before)
        if after != before:
            content = after.model_dump()
            content["confirmed"] = dict(sorted(content["confirmed"].items()))
            durable.write_text(path_in(folder), tomli_w.dumps({key: value for key, value in content.items() if value}))
