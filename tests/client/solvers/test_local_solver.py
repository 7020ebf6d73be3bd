"""What a site compiles before it joins."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.plan.settings import PRIVATE_SOLVERS, Solver
from private_site import private_plan, rows, write_table

# In a process of its own, for in this one other tests have compiled what they needed.
PROGRAM = """
import sys
from pathlib import Path

from numba.core.registry import CPUDispatcher

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.solvers.local_solver import warm_up
from fedbnsl_workbench.simulate import simulate


def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("fedbnsl")]
    kernels = {kernel for module in modules for kernel in vars(module).values() if isinstance(kernel, CPUDispatcher)}
    return {f"{kernel.__name__}{signature}" for kernel in kernels for signature in kernel.signatures}


folder = Path(sys.argv[1])
warm_up()
before = compiled()
tables = {site: Dataset.read(folder / f"{site}.csv") for site in ("north", "south")}
for plan in sorted(folder.glob("*.toml")):
    simulate(Plan.load(plan), tables, folder / "runs" / plan.stem, watch=lambda status: None)
print(len(before), *sorted(compiled() - before))
"""


@pytest.mark.long
def test_after_the_warm_up_no_run_compiles_anything(tmp_path: Path) -> None:
    for solver in get_args(Solver):
        public = None if solver in PRIVATE_SOLVERS else Plan(n_participants=2, rounds=3, local_solver=solver)
        plan = public or private_plan(local_solver=solver)
        (tmp_path / f"{solver}.toml").write_text(plan.to_toml(), encoding="utf-8")
    write_table(tmp_path / "north.csv", rows(1))
    # Columns in another order, which a site rearranges: the layout in memory is part of what is compiled for.
    write_table(tmp_path / "south.csv", rows(2), names=("mass", "age", "dose"))
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=True)
    warmed, *compiled_later = done.stdout.split(maxsplit=1)
    assert int(warmed) > 0
    assert compiled_later == []
