"""Compiled code follows its sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLEE = "from fedbnsl.compiled import compiled\n@compiled\ndef one():\n    return {}\n"
BETWEEN = (
    "from callee import one\nfrom fedbnsl.compiled import compiled\n@compiled\ndef two():\n    return one() + one()\n"
)
CALLER = (
    "from between import two\nfrom fedbnsl.compiled import compiled\n@compiled\ndef four():\n    return two() * 2\n"
)


@pytest.mark.long
def test_a_kernel_is_compiled_again_after_a_change_in_a_file_that_it_calls(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}

    def found() -> str:
        program = "from caller import four\nprint(four(), sum(four.stats.cache_hits.values()))"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    (tmp_path / "between.py").write_text(BETWEEN)
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "callee.py").write_text(CALLEE.format(1))
    assert [found(), found()] == ["4 0", "4 1"], "kept from one process to the next"
    (tmp_path / "callee.py").write_text(CALLEE.format(25))
    assert found() == "100 0"


OWNER = "from typing import NamedTuple\nclass {}(NamedTuple):\n    x: int\n"
USER = (
    "from owner import {0}\nfrom fedbnsl.compiled import compiled\n@compiled\ndef one(of):\n    return of.x\n"
    "print(one({0}(7)))\n"
)


@pytest.mark.long
def test_a_kernel_is_compiled_again_if_a_class_that_it_took_is_no_more(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("Before", "After"):
        (tmp_path / "owner.py").write_text(OWNER.format(name))
        (tmp_path / "user.py").write_text(USER.format(name))
        done = subprocess.run(
            [sys.executable, "-c", "import user"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.stdout == "7\n", done.stderr
