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
    assert loaded("import fedbnsl_server.cli, fedbnsl_server.serve") == {"grpc", "numpy", "pydantic"}
    warm = "from fedbnsl_server.algorithm.global_step import warm_up\nwarm_up()"
    assert loaded(f"import fedbnsl_server.serve\n{warm}") == {"grpc", "numpy", "pydantic", "scipy"}


@pytest.mark.parametrize("searches", [True, False])
def test_a_coordinator_loads_a_compiler_only_for_a_search(searches: bool):
    """While its sites join, so that no round waits for it."""
    plan = f"Plan(n_participants=2, moments_rounds={int(searches)}, refit_rounds={int(not searches)})"
    warm = f"from fedbnsl.plan.plan import Plan\nfrom fedbnsl_server.coordinator import warm_up\nwarm_up({plan})"
    assert ("numba" in loaded(warm)) == searches


def test_a_site_loads_compiled_kernels_to_join_a_run_and_for_nothing_else():
    assert "numba" in loaded("import fedbnsl_client.join_run")
    other = "import fedbnsl_client.site.folder, fedbnsl_client.budget.report, fedbnsl_client.site.doctor"
    assert loaded(other) == {"cryptography", "grpc", "numpy", "pydantic"}


def test_a_site_checks_the_graph_that_it_gets_without_the_mathematics():
    check = "from fedbnsl.graphs.graph import has_cycle\nimport numpy as np\nassert not has_cycle(np.array([1]), 2)"
    assert loaded(check) == {"numpy"}


def test_the_demo_watches_its_processes_without_the_mathematics():
    watches = "import fedbnsl_experiments.localnet, fedbnsl_experiments.report.summary"
    scores = "import fedbnsl_experiments.scoring.evaluation"
    assert loaded(f"{watches}\n{scores}") == {"grpc", "numpy", "pydantic", "rich"}


def test_a_process_that_ends_does_not_look_for_garbage_first():
    garbage = "class Found:\n    def __del__(self):\n        print('found')\nit = Found()\nit.own = it\ndel it"
    found = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True).stdout
        for program in (garbage, f"import fedbnsl.cli\n{garbage}")
    ]
    assert found == ["found\n", ""]
