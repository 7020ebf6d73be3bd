"""Plan: every public setting of a run, validated once, frozen, with a TOML form and a digest.

A plan is what coordinator and participants agree on before any record is read. It says nothing about the data
except, optionally, the names of the variables.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w
from pydantic import BaseModel, ValidationError, model_validator
from pydantic.fields import FieldInfo

from fedbnsl.console.wording import first_few
from fedbnsl.errors import PlanError
from fedbnsl.plan.absent import Absent
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Column, Dictionary, Entry
from fedbnsl.plan.earlier_versions import GONE, as_first_digested, in_present_names
from fedbnsl.plan.interventions import Intervention
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan_file import read_settings, read_toml
from fedbnsl.plan.preparation import Preparation
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.plan.refusals import explain
from fedbnsl.plan.rules import broken_rules
from fedbnsl.plan.settings import Settings
from fedbnsl.protocol.sparse import Mask, Matrix

_TABLES: dict[str, type[BaseModel]] = {
    "dictionary": Entry,
    "interventions": Intervention,
    "knowledge": Knowledge,
    "preparation": Preparation,
    "privacy": Privacy,
}


class Plan(Settings):
    """The settings of a run, checked against each other. Names follow docs/explanation/algorithm.md.

    Examples
    --------
    >>> from fedbnsl import Plan
    >>> plan = Plan.load("private", epsilon=2.0).with_settings(n_participants=5)
    >>> plan.privacy.epsilon, plan.n_participants
    (2.0, 5)
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        broken = next(broken_rules(self), None)
        if broken is not None:
            setting, rule = broken
            value: Any = self.model_dump(mode="json")
            for key in setting.split("."):
                value = value[key]
            raise ValueError(f"{setting} = {value!r}: must be {rule}")
        return self

    @model_validator(mode="after")
    def _one_record_a_person(self) -> Self:
        rows = self.dictionary.rows
        if self.privacy is not None and not rows.one_record_a_group:
            raise ValueError(
                f"dictionary: {rows.in_words()}, so that one person has several records, and [privacy] protects a "
                "record; use within = 'between' without lags, which makes each group one record"
            )
        if self.privacy is not None and rows.time in self.dictionary:
            raise ValueError(
                f"dictionary: {rows.time}.trend makes a variable of a time, which has no public range, and [privacy] "
                "takes its bounds from ranges; leave trend out"
            )
        return self

    @model_validator(mode="after")
    def _knowledge_of_its_variables(self) -> Self:
        if self.column_names and self.knowledge != Knowledge():
            self.edge_mask(self.column_names)
        return self

    def preparation_lines(self) -> list[str]:
        """What is done to the tables first, in words; empty if nothing is."""
        lines: list[str] = []
        if self.preparation is not None:
            told = self.preparation.in_words(
                private=self.privacy is not None, moments=self.completes_privately, tells_means=self.tells_means
            )
            lines.append("prepared: " + "; ".join(told))
        if self.dictionary:
            kinds = [entry.kind for entry in self.dictionary.root.values() if entry.is_variable]
            counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
            lines.append(f"data dictionary {self.dictionary.digest()[:8]}: {counted}")
            rows = self.dictionary.rows
            lines += [rows.in_words(all_count=self.counts_rows_of_persons)] if rows else []
        lines += [f"{first_few(map(repr, one.variables), most=20)} set at {one.site}" for one in self.interventions]
        return [*lines, *self.absent.lines(self.n_participants)]

    def columns(self, names: Sequence[str]) -> Columns:
        """A run's columns in the order of its matrices, and the variables that they belong to."""
        dictionary = self.dictionary
        owners = {column.name: column.variable for column in dictionary.columns()}
        slice_of = dictionary.slice_of if dictionary.has_slices else None
        return Columns.of(names, owners, slice_of, dictionary.tier_of if dictionary.tiers else None)

    def edge_mask(self, names: Sequence[str]) -> EdgeMask:
        """What is known of the edges between a run's columns; raises PlanError for knowledge about other variables."""
        return EdgeMask(self.knowledge, self.columns(names))

    def require_ranges(self, n_columns: int) -> tuple[Column, ...]:
        """The columns of a private run that prepares them, each with public bounds; PlanError if one has none."""
        if not self.dictionary:
            raise PlanError(
                f"plan {self.name!r} prepares columns under privacy, which takes a data dictionary with a range for "
                "each variable; it has none",
                remedy="Give one by --dictionary FILE (in a folder of tables: dictionary.toml; `fedbnsl data "
                "dictionary` drafts one). Ranges must be public knowledge, never taken from a private table.",
            )
        open_ended = self.dictionary.without_range(self.variables)
        if open_ended:
            raise PlanError(
                f"the data dictionary has no range for {first_few(map(repr, open_ended))}, and a private run takes its "
                "bounds from nowhere else",
                remedy="Add range = [low, high] to each, from public knowledge, never from a private table.",
            )
        columns = self.dictionary.columns(self.variables)
        if len(columns) != n_columns:
            raise PlanError(
                f"the data dictionary has {len(columns)} columns for this run, and the table {n_columns}",
                remedy="Name the used variables in the plan (`variables`), or leave the others out of the dictionary.",
            )
        return columns

    def bounds(self, names: Sequence[str]) -> tuple[Matrix, Matrix]:
        """(d,) public lower and (d,) upper bounds of the columns of these names, in order; see `require_ranges`."""
        by_name = {column.name: column for column in self.require_ranges(len(names))}
        columns = [by_name[name] for name in names]
        return np.array([column.low for column in columns]), np.array([column.high for column in columns])

    def has_shape(self, columns: Columns, shape: str) -> Mask:
        """(d,) which columns of a run have this shape, by the data dictionary."""
        of_variable = [
            (self.dictionary[n].shape if n in self.dictionary else "auto") == shape for n in columns.variables
        ]
        return np.array(of_variable, dtype=bool)[columns.variable_of]

    def numbers(self, columns: Columns) -> Mask:
        """(d,) which columns of a run hold numbers, not levels."""
        of_variable = [
            name not in self.dictionary or not self.dictionary[name].has_levels for name in columns.variables
        ]
        return np.array(of_variable, dtype=bool)[columns.variable_of]

    def continuous(self, columns: Columns) -> Mask:
        """(d,) which columns of a run hold numbers that are no counts."""
        counts = [name in self.dictionary and self.dictionary[name].kind == "count" for name in columns.variables]
        return np.asarray(self.numbers(columns) & ~np.array(counts, dtype=bool)[columns.variable_of])

    @classmethod
    def parse(cls, settings: Mapping[str, Any], *, origin: str = "plan") -> Self:
        """A plan from plain values; a PlanError names each wrong setting, its value and the rule that it breaks."""
        try:
            return cls.model_validate(in_present_names(settings))
        except ValidationError as error:
            problems = explain(error, cls, _TABLES, GONE)
            raise PlanError("\n".join([f"{origin} cannot be used:", *problems])) from None

    @classmethod
    def from_toml(cls, text: str, *, origin: str = "plan") -> Self:
        """A plan from TOML text; see `parse` for the errors."""
        return cls.parse(read_toml(text, origin), origin=origin)

    @classmethod
    def load(
        cls,
        plan: str | Path,
        overrides: Iterable[str] = (),
        *,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Self:
        """A ready plan by its name or a TOML file by its path, with some settings replaced.

        Parameters
        ----------
        overrides
            `key=value`, the value in TOML; `knowledge.required=[...]` reaches into a table.
        epsilon, delta
            Of `[privacy]`, in place of the plan's.

        Raises
        ------
        PlanError
            If the plan cannot be found or read, or as `parse`.
        """
        given = read_settings(plan, overrides, epsilon=epsilon, delta=delta)
        return cls.parse(given.settings, origin=given.origin)

    def with_settings(self, **settings: object) -> Self:
        """A copy with some settings replaced, validated like any other plan."""
        return self.parse({**self.model_dump(), **settings}, origin=f"plan {self.name!r}")

    def with_dictionary(self, dictionary: Dictionary, *, origin: str, given: Path | None = None) -> Self:
        """A copy with the data dictionary of `origin`.

        Raises
        ------
        PlanError
            If the plan has another one, by the option --dictionary `given` or as part of it, or names variables that
            this one lacks.
        """
        if self.dictionary and self.dictionary.digest() != dictionary.digest():
            mine, remedy = f"plan {self.name!r}", "Take the one that all sites have, in one of the two places."
            if given is not None:
                mine = f"--dictionary {given}"
                remedy = f"Leave --dictionary out to use {origin}, or move that file away to use {given}."
            raise PlanError(
                f"the data dictionary of {mine} ({self.dictionary.digest()[:8]}) is not that of {origin} "
                f"({dictionary.digest()[:8]}): neither is used",
                remedy=remedy,
            )
        return self.with_settings(dictionary=dictionary.model_dump())

    def sections(self) -> Iterator[tuple[tuple[str, ...], BaseModel, dict[str, FieldInfo]]]:
        """The tables of a plan's file: path, model, and settings that have a value; first those in no table, under ().

        Each variable of the data dictionary is a table, such as ("dictionary", "age").
        """
        tables: dict[tuple[str, ...], BaseModel] = {(): self}
        for key in type(self).model_fields:
            value = getattr(self, key)
            if isinstance(value, Dictionary):
                tables |= {(key, name): entry for name, entry in value.root.items()}
            elif isinstance(value, BaseModel):
                tables[key,] = value
        for path, table in tables.items():
            if isinstance(table, Absent):
                if table:
                    yield path, table, table.fields
                continue
            fields = type(table).model_fields.items()
            yield path, table, {k: info for k, info in fields if not isinstance(getattr(table, k), BaseModel | None)}

    def to_toml(self) -> str:
        """Every setting with its meaning as a comment; `from_toml` reads it back to an equal plan."""
        lines: list[str] = []
        for path, model, fields in self.sections():
            header: dict[str, Any] = {}
            for key in reversed(path):
                header = {key: header}
            lines.append(tomli_w.dumps(header).strip())
            values = model.model_dump(mode="json")
            for key, info in fields.items():
                if isinstance(model, Entry) and getattr(model, key) == info.get_default():
                    continue  # explained under [dictionary] once
                setting = tomli_w.dumps({key: values[key]})
                if not isinstance(model, Entry):
                    default = tomli_w.dumps({"default": info.get_default()}) if not info.is_required() else ""
                    explained = f" [{default.strip().replace(' =', ':', 1)}]" if default else ""
                    lines.append(f"# {info.description}{explained}\n{setting}")
                else:
                    lines.append(setting.rstrip())
        return "\n".join(lines).lstrip()

    def digest(self) -> bytes:
        """SHA-256 of the canonical form: the same settings give the same digest, whatever the file looked like."""
        content = as_first_digested({**self.model_dump(mode="json"), "dictionary": self.dictionary.content()})
        if self.sends_between_rows:  # within = "rows" sent nothing of that before
            content["between_rows"] = True
        if self.privacy is None and self.moments_rounds > 0:  # earlier versions sent no squares of residuals
            content["squares"] = True
        canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).digest()

    def approvable_digests(self) -> tuple[bytes, ...]:
        """Digests under which a site may have approved it: its own, and those without names of variables or sites.

        Whoever serves a plan may add these names. They change neither its privacy cost nor what it releases: a site
        takes part with its own variables or not at all.
        """
        variables, sites = {self.variables, ()}, {self.sites, ()}
        named = [self.model_copy(update={"variables": v, "sites": s}) for v in variables for s in sites]
        return tuple(plan.digest() for plan in named)
