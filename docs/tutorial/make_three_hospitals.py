"""Write three/, the invented tables of a tutorial, which do not have the same: `python make_three_hospitals.py`."""

import csv
import random
from collections.abc import Iterator
from pathlib import Path

EFFECTS = {
    "age": {},
    "activity": {"age": -0.6},
    "bmi": {"activity": -0.8},
    "pressure": {"age": 0.7, "bmi": 0.6},
    "crp": {"bmi": 0.9},
    "glucose": {"bmi": 0.7, "activity": -0.5},
}
MEANS = {"age": 50.0, "activity": 30.0, "bmi": 26.0, "pressure": 130.0, "crp": 20.0, "glucose": 6.0}

draw = random.Random(4)  # noqa: S311 - nothing secret


def patient() -> dict[str, float]:
    """What a patient is like, in standard deviations of the noise."""
    found: dict[str, float] = {}
    for name, parents in EFFECTS.items():
        found[name] = sum(effect * found[parent] for parent, effect in parents.items()) + draw.gauss(0.0, 1.0)
    return found


def row(values: dict[str, float]) -> dict[str, str]:
    """In the units of the tables."""
    return {name: f"{MEANS[name] + value:.2f}" for name, value in values.items()}


def without_crp(patients: int) -> Iterator[dict[str, str]]:
    """A laboratory that does not measure it."""
    for _ in range(patients):
        yield {name: cell for name, cell in row(patient()).items() if name != "crp"}


def with_gaps(patients: int) -> Iterator[dict[str, str]]:
    """A tenth of the cells is empty."""
    for _ in range(patients):
        yield {name: "" if draw.random() < 0.1 else cell for name, cell in row(patient()).items()}


def with_visits(patients: int, visits: int) -> Iterator[dict[str, str]]:
    """Several rows a patient, who differs a little from visit to visit."""
    for k in range(patients):
        usual = patient()
        for _ in range(visits):
            yield {
                "patient": f"P{k:03}",
                **row({name: value + draw.gauss(0.0, 0.3) for name, value in usual.items()}),
            }


Path("three").mkdir(exist_ok=True)
for site, rows in enumerate((without_crp(600), with_gaps(800), with_visits(400, 3)), start=1):
    first, *others = rows
    with open(f"three/site-{site}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(first), lineterminator="\n")
        writer.writeheader()
        writer.writerows([first, *others])
with open("three/truth.csv", "w", encoding="utf-8") as file:
    file.write("source,target,weight\n")
    for target, parents in EFFECTS.items():
        file.writelines(f"{source},{target},{effect}\n" for source, effect in parents.items())
