"""How each variable was taken, and why: `taken` in result.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_server.results.sentences import FORMS, Note, note
from fedbnsl_server.results.unused import unused_notes

_NOT_COUNTED = ("not_counted", "gaps_not_counted", "withheld_not_counted", "private_not_counted")
_LEVELS = {"nominal": "indicators", "binary": "indicator", "ordinal": "ranks"}


def how_taken(result: Mapping[str, Any], plan: Plan, families: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By variable its form, its family given its parents, and both with the reason for the form, as notes.

    Parameters
    ----------
    result
        What result.json holds, with notes in place of the sentences of its verdict.
    families
        By variable what it is given its parents, where straight lines do not tell best: table, curved or regression.
    """
    told = _Told(result, plan, families)
    return {name: told.of(name) for name in result["variables"]}


class _Told:
    def __init__(self, result: Mapping[str, Any], plan: Plan, families: Mapping[str, str]) -> None:
        self._result, self._plan, self._families = result, plan, families
        self._unused = {one["variable"]: one for one in result["unused"] if one["level"] is None}
        curves: Mapping[str, Any] = result["curves"] or {"variables": [], "effects": []}
        self._bent: Sequence[str] = curves["variables"]
        self._effects: Sequence[Mapping[str, Any]] = curves["effects"]
        self._assumed: Mapping[str, Note] = {one.code: one for one in result["verdict"]["assumed"]}

    def of(self, name: str) -> dict[str, Any]:
        form = self._form(name)
        ratios = [one["kind"] for one in self._result["regressions"] if one["child"] == name and one["estimates"]]
        far = self._result["outlying"].get(name, {"values": {}})["values"]
        how = note(
            "taken",
            form=FORMS[form],
            reference=self._result["references"].get(name) if form == "indicators" else None,
            averages=self._plan.dictionary.rows.averages,
            ratios="".join(kind for kind in ratios if kind != "mean difference"),
            curves=[one["source"] for one in self._effects if one["target"] == name],
            far=sum(far.values()),
        )
        return {"form": form, "family": self._families.get(name, "linear"), "how": how, "why": self._why(name, form)}

    def _form(self, name: str) -> str:
        if name in self._unused:
            return "unused"
        if self._result["categories"]:
            return "table"
        if self._has_levels(name):
            return _LEVELS[self._plan.dictionary[name].kind]
        return "curve" if name in self._bent else "line"

    def _has_levels(self, name: str) -> bool:
        return name in self._plan.dictionary and self._plan.dictionary[name].has_levels

    def _why(self, name: str, form: str) -> Note:
        if form == "unused":
            return next(unused_notes([self._unused[name]]))
        if form == "table":
            return self._chosen("tables_chosen") or note("taken_as_all_are_categories")
        dictionary = self._plan.dictionary
        if form not in ("line", "curve"):
            codes = _NOT_COUNTED if dictionary[name].is_indicator else ()
            why = next((note(f"taken_{code}") for code in codes if code in self._assumed), "")
            why = self._chosen("lines_chosen") or why
            return note("taken_as_levels", kind=dictionary[name].kind, not_counted=why)
        shape = dictionary[name].shape if name in dictionary else "auto"
        private, may_look = self._plan.privacy is not None, self._plan.searches_curves or self._plan.may_ask_for_squares
        if shape != "auto" and (form == "curve" or may_look):
            return note("taken_by_shape", shape=shape)
        if self._result["curves"]:
            return note("taken_by_fit", square=private, curve=form == "curve")
        return note("taken_unseen", why=self._no_curves)

    def _chosen(self, code: str) -> Note | None:
        """Why counts or straight lines were chosen, if they were."""
        return note(f"taken_{code}", **self._assumed[code].numbers) if code in self._assumed else None

    @property
    def _no_curves(self) -> Note:
        """Why no curves were looked for."""
        plan, verdict = self._plan, self._result["verdict"]
        for one in verdict["not_tested"]:
            if one.code == "curves_not_searched":
                why: Note = one.numbers["why"]
                return why
        if plan.searches_curves or plan.may_ask_for_squares:
            is_searched = self._result["estimation"] is not None
            return note("no_curves_noise" if is_searched else "no_curves_yet")
        if plan.look_for_curves and plan.no_curves_because:
            return note(f"no_curves_{plan.no_curves_because}")
        return note("no_curves_absent" if plan.look_for_curves and plan.absent else "no_curves_planned")
