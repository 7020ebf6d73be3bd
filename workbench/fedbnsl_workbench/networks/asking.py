"""Questions to a network as programs put them: what is known, what is set, and then what is asked for.

``network.given(age=60, sex="f").predict("pressure").interval``, ``network.do(stage="III").none_hidden().mean("crp")``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedbnsl.errors import SetupError
from fedbnsl_server.results.network_of_run import NetworkOfRun
from fedbnsl_workbench.networks.questions import answer
from fedbnsl_workbench.networks.remedies import remedy_as_note
from fedbnsl_workbench.networks.values import text_of

_SHORT = 120  # characters


@dataclass(frozen=True, eq=False)
class Answer:
    """What a variable is like where others are known or set; `told` is what `fedbnsl network ask --json` prints.

    Its text is what `fedbnsl network ask` prints.
    """

    told: Mapping[str, Any]

    @property
    def mean(self) -> float:
        """Of a number, in the data dictionary's unit. Raises SetupError for a variable with levels."""
        return float(self._of_number("mean"))

    @property
    def spread(self) -> float:
        """Its standard deviation. Raises as `mean`."""
        return float(self._of_number("spread"))

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that holds 95 % of its values. Raises as `mean`."""
        low, high = self._of_number("interval")
        return float(low), float(high)

    @property
    def probabilities(self) -> dict[str, float]:
        """By level. Raises SetupError for a number."""
        if "probabilities" not in self.told:
            raise SetupError(f"{self.told['target']!r} is a number, and has no levels", remedy="Ask for .mean.")
        return dict(self.told["probabilities"])

    @property
    def doubts(self) -> list[str]:
        """What says against the network, and what to know of this question."""
        return [*self.told["doubts"], *self.told["notes"]]

    def _of_number(self, what: str) -> Any:
        if what not in self.told:
            raise SetupError(f"{self.told['target']!r} has levels, and so no {what}", remedy="Ask for .probabilities.")
        return self.told[what]

    def __repr__(self) -> str:
        doubts = [*in_short(self.told["doubts"], ".doubts of this answer", names_in(self.told)), *self.told["notes"]]
        return "\n".join([*(f"be careful: {one}" for one in doubts), *in_words(self.told)])


@dataclass(frozen=True, eq=False)
class Question:
    """What is known and what is set; each method returns another question, and nothing is computed before `predict`.

    Values are levels, or numbers in the data dictionary's unit; a name that is no Python name stands in a dict:
    ``given({"blood pressure": 120}, age=60)``.
    """

    fitted: NetworkOfRun = field(repr=False)
    known: Mapping[str, object] = field(default_factory=dict[str, object])
    set_to: Mapping[str, object] = field(default_factory=dict[str, object])
    assumes_none_hidden: bool = False

    def given(self, values: Mapping[str, object] | None = None, /, **more: object) -> "Question":
        """Where these values are known, too. Raises SetupError if one of them has a value already."""
        return replace(self, known=_joined(self.known, values, more))

    def do(self, values: Mapping[str, object] | None = None, /, **more: object) -> "Question":
        """Where an intervention sets these values, too. Raises SetupError if one of them has a value already."""
        return replace(self, set_to=_joined(self.set_to, values, more))

    def none_hidden(self) -> "Question":
        """If no common cause of two variables is missing from the tables: what interventions do rests on it."""
        return replace(self, assumes_none_hidden=True)

    @remedy_as_note
    def predict(self, target: str) -> Answer:
        """What the target is like.

        Raises
        ------
        SetupError
            If there is no such variable or value, nothing has the known values, or the effect of an intervention is not
            identified.
        """
        return Answer(asked(self.fitted, target, self.known, self.set_to, none_hidden=self.assumes_none_hidden))

    @remedy_as_note
    def mean(self, target: str) -> float:
        """Mean of a number. Raises as `predict`, and for a variable with levels."""
        return self.predict(target).mean

    @remedy_as_note
    def probabilities(self, target: str) -> dict[str, float]:
        """How likely each level is. Raises as `predict`, and for a number."""
        return self.predict(target).probabilities


def asked(
    fitted: NetworkOfRun,
    target: str,
    given: Mapping[str, object],
    do: Mapping[str, object],
    *,
    none_hidden: bool,
) -> dict[str, Any]:
    """`answer` to values of any type. Raises SetupError as `Question.predict`."""
    if not isinstance(target, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SetupError(f"{target!r} is asked for: expected the name of one variable")
    known, set_to = ({name: _value(fitted, name, value) for name, value in one.items()} for one in (given, do))
    return answer(fitted, target, known, set_to, none_hidden=none_hidden)


def in_words(told: Mapping[str, Any]) -> Sequence[str]:
    """What `answer` tells, in lines."""
    unit = f" {told['unit']}" if told["unit"] else ""
    about = [f"{name} = {value}" for name, value in told["given"].items()]
    about += [f"{name} set to {value}" for name, value in told["do"].items()]
    where = f", where {' and '.join(about)}" if about else ""
    how = "by formulas" if told["exact"] else f"from draws, of which about {told['draws']:,} count"
    last = f"{how}; of rows with the means of all sites" + "; if no common cause is hidden" * bool(told["do"])
    if "probabilities" in told:
        levels = [f"{level}: {100 * p:.1f} %" for level, p in told["probabilities"].items()]
        return [f"{told['target']}{where}:", *levels, last]
    low, high = told["interval"]
    of_number = (
        f"{told['target']}{where}: mean {told['mean']:.4g}{unit}, standard deviation {told['spread']:.3g}; 95 % of "
        f"values from {low:.4g} to {high:.4g}"
    )
    return [of_number, last]


def names_in(told: Mapping[str, Any]) -> list[str]:
    """The variables that an answer is about."""
    return [name for name in (told.get("target"), *told.get("given", ()), *told.get("do", ())) if name]


def in_short(doubts: Sequence[str], whole: str, names: Iterable[str] = ()) -> list[str]:
    """What says against a network, a line each, long ones cut; first those that name these variables.

    `whole`: where all of them stand.
    """
    asked = list(map(repr, names))
    ordered = sorted(doubts, key=lambda doubt: not any(name in doubt for name in asked))
    lines = [one if len(one) <= _SHORT else f"{one[:_SHORT].rpartition(' ')[0]} ..." for one in ordered]
    cut = [k for k, line in enumerate(lines) if line != ordered[k]]
    if cut:
        lines[cut[-1]] += f"; whole: {whole}"
    return lines


def _joined(
    before: Mapping[str, object], values: Mapping[str, object] | None, more: Mapping[str, object]
) -> dict[str, object]:
    if values is not None and not isinstance(values, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SetupError(f"expected a dict from name to value, or name=value; got {type(values).__name__}")
    found = dict(before)
    for name, value in [*(values or {}).items(), *more.items()]:
        if name in found:
            raise SetupError(f"{name!r} has two values")
        found[name] = value
    return found


def _value(fitted: NetworkOfRun, name: str, value: object) -> str:
    text = text_of(fitted, name, value)
    if not text:
        raise SetupError(f"{name} = {value!r}: this stands for a missing value", remedy=f"Leave {name!r} out.")
    return text
