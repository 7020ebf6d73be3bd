"""What a command loads before it does anything: seconds of start-up are modules that nobody asked for."""

import subprocess
import sys

import pytest

HEAVY = {
    "cryptography", "grpc", "joblib", "llvmlite", "matplotlib", "networkx", "numba", "numpy", "opentelemetry",
    "prometheus_client", "pydantic", "requests", "rich", "scipy", "sklearn", "starlette",
    "uvicorn",
}  # fmt: skip


def loaded(program: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after a program."""
    tell = f"import sys\n{program}\nprint('LOADED', *({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, timeout=100, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "command",
    ["", "participant", "participant join", "coordinator serve", "demo", "simulate", "report", "reproduce", "tune"],
)
def test_help_loads_no_library_but_that_of_the_command_line(command: str) -> None:
    call = f"main({[*command.split(), '--help']})"
    assert loaded(f"from fedbnsl.cli import main\ntry:\n    {call}\nexcept SystemExit:\n    pass") == set()


def test_a_coordinator_listens_before_it_loads_mathematics_and_never_loads_what_sites_and_reports_need():
    assert loaded("import fedbnsl_server.cli, fedbnsl_server.run.serve") == {"grpc", "numpy", "pydantic"}
    warm = "from fedbnsl_server.algorithm.global_step import warm_up\nwarm_up()"
    assert loaded(f"import fedbnsl_server.run.serve\n{warm}") == {"grpc", "numpy", "pydantic", "scipy"}


@pytest.mark.parametrize("searches", [True, False])
def test_a_coordinator_loads_a_compiler_only_for_a_search(searches: bool):
    """While its sites join, so that no round waits for it."""
    plan = f"Plan(n_participants=2, moments_rounds={int(searches)}, refit_rounds={int(not searches)})"
    warm = f"from fedbnsl.plan.plan import Plan\nfrom fedbnsl_server.run.coordinator import warm_up\nwarm_up({plan})"
    assert ("numba" in loaded(warm)) == searches


def test_a_site_loads_compiled_kernels_to_join_a_run_and_for_nothing_else():
    assert "numba" in loaded("import fedbnsl_client.join_run")
    other = "import fedbnsl_client.site.folder, fedbnsl_client.budget.report, fedbnsl_client.site.doctor"
    assert loaded(other) == {"cryptography", "grpc", "numpy", "pydantic"}


def test_a_site_checks_the_graph_that_it_gets_without_the_mathematics():
    check = "from fedbnsl.graphs.graph import has_cycle\nimport numpy as np\nassert not has_cycle(np.array([1]), 2)"
    assert loaded(check) == {"numpy"}


def test_the_demo_watches_its_processes_without_the_mathematics():
    watches = "import fedbnsl_workbench.localnet, fedbnsl_workbench.report.summary"
    scores = "import fedbnsl_workbench.scoring.evaluation"
    assert loaded(f"{watches}\n{scores}") == {"grpc", "numpy", "pydantic", "rich"}


# A library whose destructor crashes, a thread that goes on, and an object that says when it is looked for.
AT_THE_END = """
import atexit, ctypes, sys, threading
from fedbnsl import cli
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
threading.Thread(target=threading.Event().wait, daemon=True).start()
cli.before_loading = lambda: atexit.register(print, "what a library has registered")
class Found:
    def __del__(self):
        print("looked for garbage")
it = Found()
it.own = it
del it
sys.stdout.write("not flushed, ")
cli.run(sys.argv[1:])
"""


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["plan", "show", "no-such-plan"], 2)])
def test_a_command_ends_with_its_code_whatever_libraries_and_threads_do_at_the_end(arguments, code):
    command = [sys.executable, "-c", AT_THE_END, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("not flushed, ")
    assert done.stdout.endswith("what a library has registered\n")
