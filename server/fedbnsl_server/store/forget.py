"""Forget a site: what a coordinator's folders hold of it alone goes; what results rest on stays, and they say so.

Of a run that is over, checkpoints go that hold the site's own weights and sums. In result.json and events.jsonl it gets
another name, and what was told of its table goes. Under that name stay its number of rows, which the others' numbers
and the sum would tell, its bytes and its privacy loss, which is a promise to its records. plan.toml stays as the sites
have approved it: its digest is in their ledgers.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from fedbnsl.errors import ResultError
from fedbnsl.events.security_log import NAME as SECURITY_LOG
from fedbnsl.files import durable
from fedbnsl_server.results.result_schema import Result
from fedbnsl_server.store.kept_checkpoints import FOLDER as KEPT
from fedbnsl_server.store.run_folder import OTHER_NAME, SITE_FORGOTTEN, is_worked_on, result_of
from fedbnsl_server.store.site_ledgers import FILE as SITE_LEDGERS

_RESULT, _EVENTS = "result.json", "events.jsonl"
_MARKS_OF_A_RUN = frozenset({_RESULT, _EVENTS, "run.json", "queued-plan.toml"})
_OVER = ("finished", "failed")
# Where a site's entry stays under the other name: the keys that lead to it, lists left out.
_STAYS_AT = {("sites",), ("privacy", "sites"), ("rounds", "bytes"), ("bytes",), ("control_bytes",)}
# The keys of what is by site, lists sites, or tells of them in words: asked where a variable has a site's name, too.
_OF_SITES = frozenset(
    [
        "sites",
        "estimates",
        "bytes",
        "control_bytes",
        "influence",
        "site_versions",
        "n_samples",
        "contributed",
        "left_out",
        "values",
        "odd_site",
        "warnings",
        "notes",
        "reason",
        "reasons",
        "text",
        "unknown_because",
        "no_guarantee_because",
    ]
)
_TEXT = "(a text about a site that was forgotten)"
_WARNING = (
    "A site was forgotten on {day}, {alias} here: all numbers over all sites still rest on its rows; those of it alone "
    "are gone"
)
_WHY_IT_STAYS = {
    "report.html": "write it again (fedbnsl report)",
    "plan.toml": "the plan as all sites have approved it, by its digest",
    "queued-plan.toml": "the plan as it was queued",
    SITE_LEDGERS: "should the site come back, a ledger restored from a backup is noticed",
    SECURITY_LOG: "who called and took part; its entries are chained, and the oldest go by themselves",
}


@dataclass(frozen=True)
class Held:
    """What a folder holds of a site."""

    folder: Path
    why_not: str = ""  # why it cannot be forgotten there now; empty: it can
    removed: list[Path] = field(default_factory=list[Path])  # files that go
    changed: list[Path] = field(default_factory=list[Path])  # files in which its name and what it alone told go
    stays: dict[Path, str] = field(default_factory=dict[Path, str])  # files that go on naming it, and why
    rests: bool = False  # whether a result rests on its rows


def held(folders: Iterable[Path], site: str) -> list[Held]:
    """What the runs in some folders hold of a site, and these folders themselves.

    Raises ResultError if something cannot be read.
    """
    found: list[Held] = []
    seen: set[Path] = set()
    for folder in folders:
        by_run = _files(folder, seen)
        beside = dict(_naming(folder, by_run.pop(folder), site)) if folder in by_run and not _is_run(folder) else {}
        found += [of_run for run, files in sorted(by_run.items()) if (of_run := _of_run(run, files, site)) is not None]
        if beside:
            found.append(Held(folder, stays=beside))
    return found


def forget(found: Sequence[Held], site: str) -> None:
    """Remove and change what `held` has listed. Doing so again after a crash finishes it.

    Raises ResultError if a file cannot be written, or result.json is not what a run writes.
    """
    for one in found:
        if not one.changed:
            continue
        sites, alias, words = _sites_of(one.folder), _other_name(one.folder), _words_of(one.folder)
        for file in one.removed:  # first: they hold the most
            try:
                for path in (file.resolve(), file):  # a link, and what it leads to
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise ResultError(f"{file} cannot be deleted: {error.strerror}") from error
        for file in one.changed:
            text = file.read_text(encoding="utf-8")
            change = _result if file.name == _RESULT else _events
            durable.write_text(file.resolve(), change(text, _Names(site, alias, sites | {site}, words)))


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in _MARKS_OF_A_RUN)


def _files(folder: Path, seen: set[Path]) -> dict[Path, list[Path]]:
    """The files in and below a folder by the run that they are of, those of no run by the folder; none `seen` before.

    Raises ResultError if a folder cannot be read.
    """

    def unreadable(error: OSError) -> None:
        raise ResultError(f"{error.filename} cannot be read: {error.strerror}") from error

    found: dict[Path, list[Path]] = {}
    for place, below, names in os.walk(folder, onerror=unreadable, followlinks=True):
        here, real = Path(place), Path(place).resolve()
        if real in seen:  # named twice, or a link
            below.clear()
            continue
        seen.add(real)
        of = here if _MARKS_OF_A_RUN & {*names} else next((one for one in here.parents if one in found), folder)
        found.setdefault(of, []).extend(here / name for name in names)
    return found


def _sites_of(run: Path) -> frozenset[str]:
    """The sites that a run's events and its result tell of."""
    result = result_of(run) or {}
    told = [one["site"] for one in _lines(run / _EVENTS) if "site" in one]
    return frozenset([*told, *result.get("sites", ()), *(one["site"] for one in result.get("ejected", ()))])


def _words_of(run: Path) -> frozenset[str]:
    """The names of a run's variables, columns and levels, one of which may be a site's name, too."""
    result = result_of(run) or {}
    levels = [level for those in result.get("levels", {}).values() for level in those]
    return frozenset([*result.get("variables", ()), *(result.get("columns") or ()), *levels])


def _lines(events: Path) -> list[dict[str, Any]]:
    """The events of a run that is over: its last line is whole."""
    try:
        text = events.read_text(encoding="utf-8") if events.exists() else ""
        return [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise ResultError(f"{events} cannot be read: {error}") from error


def _of_run(run: Path, files: Sequence[Path], site: str) -> Held | None:
    naming = dict(_naming(run, files, site))
    result = result_of(run)
    state = "" if result is None else str(result["state"])
    if naming and (run / "run.lock").exists() and is_worked_on(run):
        return Held(run, "a coordinator works on it: wait for its end, or take the site out (coordinator eject)")
    if naming and state not in _OVER:
        return Held(run, "it may go on: eject the site there, or end it (coordinator runs stop, then remove)")
    if state not in _OVER or site not in _sites_of(run):
        return Held(run, stays=naming) if naming else None
    if why_not := _why_not(run, site):
        return Held(run, f"{why_not}; remove the run (coordinator runs remove)")
    sites = {} if result is None else {**result["sites"], **{one["site"]: one for one in result.get("ejected", ())}}
    commands = [file for file in naming if re.fullmatch(r"eject-[\w-]+\.json", file.name)]
    checkpoints = [file for file in files if _is_checkpoint(file) and file.parent in (run, run / KEPT)]
    if site not in sites:  # it left before the first round
        checkpoints = []
    changed = [file for file in (run / _EVENTS, run / _RESULT) if file in naming]  # in this order: see `_other_name`
    gone = {*commands, *checkpoints, *changed}
    return Held(
        run,
        removed=sorted(gone - {*changed}),
        changed=changed,
        stays={file: why for file, why in naming.items() if file not in gone},
        rests=site in sites and sites[site]["rounds_contributed"] > 0,
    )


def _why_not(run: Path, site: str) -> str:
    """Why a run's files cannot do without a site, such as one that is called as they call a state; empty: they can."""
    names = _Names(site, _other_name(run), _sites_of(run) | {site}, _words_of(run))
    try:
        _result((run / _RESULT).read_text(encoding="utf-8"), names)
    except ResultError as error:
        return str(error)
    return ""


def _is_checkpoint(file: Path) -> bool:
    return file.name.endswith((".npz", ".npz.part"))  # the latter is left by a crash


def _naming(folder: Path, files: Iterable[Path], site: str) -> Iterator[tuple[Path, str]]:
    """Those files of a folder that name a site, or lie in one of its name, and why they go on doing so.

    Checkpoints are not looked into: those of a run go with any of its sites.
    """
    name = _pattern(site)
    for file in sorted(files):
        if file.name == "enrolment.json" or _is_checkpoint(file):  # `Federation.forget` changes the former
            continue
        try:
            within = site in file.relative_to(folder).parts
            if file.is_file() and (within or name.search(file.read_bytes().decode(errors="surrogateescape"))):
                kind = SECURITY_LOG if file.name.startswith(SECURITY_LOG) else file.name
                yield file, _WHY_IT_STAYS.get(kind, "no coordinator of a federation writes it: look at it yourself")
        except OSError as error:
            raise ResultError(f"{file} cannot be read: {error.strerror}") from error


def _pattern(site: str) -> re.Pattern[str]:
    """Finds a site's name in a text, but not within a longer one."""
    return re.compile(rf"(?<![\w.-]){re.escape(site)}(?![\w-]|\.\w)")


def _other_name(run: Path) -> str:
    """The first of forgotten-1, forgotten-2 and so on that a run's result does not know.

    events.jsonl is changed before it, and may have the name from a call that was broken off.
    """
    told = (run / _RESULT).read_text(encoding="utf-8")
    taken = {int(k) for k in OTHER_NAME.findall(told)}
    return f"forgotten-{next(k for k in range(1, len(taken) + 2) if k not in taken)}"


@dataclass(frozen=True)
class _Names:
    """The site that is forgotten, its other name, all sites of the run, and names of variables, columns and levels."""

    site: str
    alias: str
    all: frozenset[str]
    words: frozenset[str]

    def are_at(self, place: tuple[str, ...]) -> bool:
        """Whether names at a place are those of sites, if they look so."""
        return self.site not in self.words or not _OF_SITES.isdisjoint(place[-1:])


def _result(text: str, names: _Names) -> str:
    told: dict[str, Any] = _without(json.loads(text), names)
    if names.alias in (*told["sites"], *(one["site"] for one in told.get("ejected", ()))):
        day = datetime.now(UTC).date().isoformat()
        told["warnings"] = [*told["warnings"], _WARNING.format(day=day, alias=names.alias)]
        told["warning_codes"] = [*told.get("warning_codes", ()), SITE_FORGOTTEN]
    try:
        Result.model_validate(told)
    except ValueError as error:
        why = str(error).partition("\n")[0]
        raise ResultError(f"{_RESULT} cannot do without {names.site!r} ({why})") from error
    return json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _events(text: str, names: _Names) -> str:
    events = [json.loads(line) for line in text.splitlines()]
    kept = [_without(one, names) | {"event": one["event"]} for one in events if one.get("site") != names.site]
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept)


def _without(told: Any, names: _Names, place: tuple[str, ...] = ()) -> Any:
    """A content without what was told of a site, which has another name in the rest."""
    if isinstance(told, dict):
        own = dict(cast(dict[str, Any], told))
        if own.keys() <= names.all and names.site in own and names.are_at(place):
            its = own.pop(names.site)
            own |= {names.alias: its} if place in _STAYS_AT else {}
        elif own.get("site") == names.site:
            if place != ("ejected",):
                return None
            own["site"] = names.alias
        return {key: _without(value, names, (*place, key)) for key, value in own.items()}
    if isinstance(told, list):
        parts: list[Any] = [*told]
        if names.all.issuperset(one for one in parts if isinstance(one, str)) and names.are_at(place):
            parts = [names.alias if one == names.site else one for one in parts]
        kept = [_without(one, names, place) for one in parts]
        return [one for one, before in zip(kept, parts, strict=True) if one is not None or before is None]
    if not names.are_at(place):
        return told
    if isinstance(told, str) and told == names.site:
        return None
    return _TEXT if isinstance(told, str) and _pattern(names.site).search(told) else told
