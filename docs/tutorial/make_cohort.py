"""Write cohort.csv, the invented table of the tutorial: `python make_cohort.py`."""

import csv
import random

EFFECTS = {
    "stress": {},
    "exercise": {},
    "sleep": {"stress": -0.8},
    "weight": {"exercise": -0.9},
    "pressure": {"stress": 0.6, "weight": 0.8},
    "inflammation": {"weight": 0.7},
    "mood": {"sleep": 0.7, "inflammation": -0.6},
}

draw = random.Random(7)  # noqa: S311 - nothing secret
with open("cohort.csv", "w", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, sorted(EFFECTS), lineterminator="\n")
    writer.writeheader()
    for _ in range(1500):
        person: dict[str, float] = {}
        for score, parents in EFFECTS.items():
            person[score] = sum(effect * person[parent] for parent, effect in parents.items()) + draw.gauss(0.0, 1.0)
        writer.writerow({score: f"{value:.2f}" for score, value in person.items()})
