"""Tidy tables: rows as dictionaries, written as CSV."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, numbers to ten digits, a list as JSON; the columns are those of all rows, in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.10g}")
    return json.dumps(value) if isinstance(value, list | dict) else value
