"""Tables of a ward that a data dictionary describes: mixed kinds, own names and spellings, missing values."""

from pathlib import Path

import numpy as np
import tomli_w

from fedbnsl.plan.dictionary import Dictionary

VARIABLES = ("age", "crp", "sex", "blood", "visits")
COLUMNS = ("age", "crp", "sex", "blood=A", "blood=B", "visits")
ENTRIES: dict[str, dict[str, object]] = {
    "age": {"unit": "years", "range": [0.0, 110.0]},
    "crp": {"range": [0.0, 500.0], "transform": "log1p"},
    "sex": {"kind": "binary", "levels": ["f", "m"]},
    "blood": {"kind": "nominal", "levels": ["0", "A", "B"]},
    "visits": {"kind": "count", "range": [0.0, 100.0]},
}
HERE: dict[str, dict[str, object]] = {
    "age": {"column": "Alter", "factor": 1 / 12, "missing": ["-9"]},
    "sex": {"levels": {"f": "w"}},
}
"""What is different at the first site: ages in months, and a spelling."""


def dictionary(**entries: dict[str, object]) -> Dictionary:
    return Dictionary.model_validate({**ENTRIES, **entries})


def write_dictionary(path: Path, **entries: dict[str, object]) -> Path:
    path.write_text(tomli_w.dumps({**ENTRIES, **entries}), encoding="utf-8")
    return path


def write_column_map(path: Path) -> Path:
    path.write_text(tomli_w.dumps(HERE), encoding="utf-8")
    return path


def write_ward(path: Path, seed: int, *, rows: int = 200, own_words: bool = False, gaps: bool = True) -> Path:
    """A table with crp from age and sex, and visits from the blood group; `own_words` as HERE says."""
    drawn = np.random.default_rng(seed)
    age, sex, blood = drawn.normal(60, 15, rows), drawn.random(rows) < 0.5, drawn.integers(0, 3, rows)
    crp = np.exp(1 + 0.03 * age + 0.5 * sex + drawn.normal(0, 0.3, rows))
    visits = drawn.poisson(np.exp(0.3 + 1.2 * (blood == 1)))
    lines = ["Alter,crp,sex,blood,visits" if own_words else "age,crp,sex,blood,visits"]
    for k in range(rows):
        cells = [
            f"{age[k] * (12 if own_words else 1):.4f}",
            f"{crp[k]:.4f}",
            "m" if sex[k] else "w" if own_words else "f",
            "0AB"[blood[k]],
            str(visits[k]),
        ]
        if gaps and drawn.random() < 0.1:
            cells[drawn.integers(5)] = ""
        lines.append(",".join(cells))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_folder(folder: Path, **options: int) -> Path:
    """Two sites, the first with words of its own, and the dictionary."""
    write_ward(folder / "site-1.csv", 1, own_words=True, **options)
    write_ward(folder / "site-2.csv", 2, **options)
    write_dictionary(folder / "dictionary.toml")
    write_column_map(folder / "site-1.columns.toml")
    return folder
