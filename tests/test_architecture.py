"""The rules of the architecture, read off the imports of whatever modules exist."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from fedbnsl.rounds.kinds import KINDS
from fedbnsl.wire import federation_pb2 as federation

ROOT = Path(__file__).parents[1]
ROOTS = {
    "fedbnsl": ROOT / "common",
    "fedbnsl_server": ROOT / "server",
    "fedbnsl_client": ROOT / "client",
    "fedbnsl_workbench": ROOT / "workbench",
    "fedbnsl_research": ROOT / "research",
}
GENERATED = "fedbnsl.wire"

# Rule 1: which of the packages each may import: a distribution never needs a later one.
PACKAGES = {
    "fedbnsl": {"fedbnsl"},
    "fedbnsl_server": {"fedbnsl", "fedbnsl_server"},
    "fedbnsl_client": {"fedbnsl", "fedbnsl_client"},
    "fedbnsl_workbench": set(ROOTS) - {"fedbnsl_research"},
    "fedbnsl_research": set(ROOTS),
}

# The rules name rooms, and single modules only where a room is divided: a name stands for itself and all below it.

# Rule 2: who may import gRPC, and who the generated messages.
GRPC = ("grpc", "grpc_health", "grpc_status")
GRPC_ROOMS = (
    "fedbnsl.protocol.channel",
    "fedbnsl_server.cli",
    "fedbnsl_server.grpc_api",
    "fedbnsl_server.observe.status_client",
    "fedbnsl_client.cli",
    "fedbnsl_client.session",
    "fedbnsl_client.site.doctor",
    "fedbnsl_client.site.options",
    "fedbnsl_research.bench.attacks",  # makes calls that no part of fedbnsl would
)
PROTOBUF = ("google", "fedbnsl.wire")
PROTOBUF_ROOMS = (
    "fedbnsl.protocol.codec",
    "fedbnsl.protocol.matrix_codec",
    "fedbnsl.protocol.offer_codec",
    "fedbnsl.protocol.chunks",
    "fedbnsl.protocol.plain_codec",
    "fedbnsl.rounds",
    "fedbnsl_server.grpc_api",
    "fedbnsl_server.observe.status_client",
    "fedbnsl_client.session",
    "fedbnsl_research.bench.attacks",
)

# Pages: the web framework stays where they are made, and is loaded only where one is asked for (test_startup.py).
WEB = ("starlette", "uvicorn")
WEB_ROOMS = (
    "fedbnsl.web",
    "fedbnsl_server.observe.page",
    "fedbnsl_client.observe",
)

# Rule 3: the mathematics, and all that it may import.
MATHS = (
    "fedbnsl.families",
    "fedbnsl.graphs.class_members",
    "fedbnsl.graphs.contingency",
    "fedbnsl.graphs.directed_pair",
    "fedbnsl.graphs.cpdag",
    "fedbnsl.graphs.family_moments",
    "fedbnsl.graphs.meek",
    "fedbnsl.network.bayesian_network",
    "fedbnsl.network.families",
    "fedbnsl.network.own_fit",
    "fedbnsl.network.own_means",
    "fedbnsl.network.sums",
    "fedbnsl.network.validation",
    "fedbnsl.network.validation_scores",
    "fedbnsl.privacy.calibration",
    "fedbnsl.privacy.gaussian_dp",
    "fedbnsl.privacy.site_shares",
    "fedbnsl.privacy.squares",
    "fedbnsl.privacy.zcdp",
    "fedbnsl_server.algorithm",
    "fedbnsl_server.inference",
    "fedbnsl_server.search",
    "fedbnsl.compiled",
    "fedbnsl_client.losses",
    "fedbnsl_client.privacy",
    "fedbnsl_client.solvers",
)
NOT_MATHS = (
    "fedbnsl_client.privacy.randomness",  # the operating system's
)
MATHS_EXTERNAL = ("numpy", "scipy", "numba")
MATHS_STANDARD = {
    "bisect",
    "collections.abc",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "itertools",
    "math",
    "typing",
}
MATHS_INTERNAL = (
    "fedbnsl.errors",
    "fedbnsl.graphs.directed_by",
    "fedbnsl.graphs.graph",
    "fedbnsl.graphs.pag",
    "fedbnsl.protocol.messages",  # frozen values without a wire format
    "fedbnsl.plan",
    "fedbnsl.rounds.kinds",  # which round is of which kind
    "fedbnsl.protocol.sparse",
    "fedbnsl_client.data.person_rows",  # rows of persons, block by block
    "fedbnsl_client.data.mapped_array",  # a table block by block, and room for what is kept of one that lies in a file
)
NOT_IN_MATHS = {"open", "print", "input", "exec", "eval", "breakpoint"}

# Rule 4: transport, which imports no mathematics.
TRANSPORT = (
    "fedbnsl.protocol.channel",
    "fedbnsl.protocol.codec",
    "fedbnsl.protocol.matrix_codec",
    "fedbnsl.protocol.offer_codec",
    "fedbnsl.protocol.plain_codec",
    "fedbnsl_server.grpc_api",
    "fedbnsl_server.observe.status_client",
    "fedbnsl_client.session",
)

# Rules 5 and 8: who makes a state, who takes a step of either side; the benchmark times a solver by itself.
STATE_MODULES = {"fedbnsl_server.algorithm.admm", "fedbnsl_server.store.checkpoint"}
STEP_MODULES = {
    "advance": {"fedbnsl_server.run.round_loop"},
    "advance_admm": {"fedbnsl_server.rounds.admm"},
    "global_step": {
        "fedbnsl_server.algorithm.global_step",
        "fedbnsl_server.algorithm.admm",
    },
    "solve": {
        "fedbnsl_client.solvers.local_solver",
        "fedbnsl_client.solvers.pgcd",
        "fedbnsl_client.solvers.dp_pgcd",  # to compile it
        "fedbnsl_client.solvers.frank_wolfe",
        "fedbnsl_research.bench.privacy",
        "fedbnsl_research.bench.private_steps",
    },
}

# Rule 6: randomness that touches a site is drawn in one module; the others draw waiting times and keys.
RANDOM = ("random", "secrets", "numpy.random")
RANDOM_MODULES = {
    "fedbnsl_client.privacy.randomness",  # what noise is drawn from; the samplers take it as an argument
    "fedbnsl_client.session",
    "fedbnsl_client.site.identity",
    "fedbnsl_client.budget.ledger",  # its number, its key and the first value of its chain; no noise
    "fedbnsl_client.site.predict_cli",  # values of missing cells, of a fixed seed, in what stays at the site
    "fedbnsl.web.access",  # what the forms of a page show
    "fedbnsl.web.operators",  # tokens
}

# Rule 7: who sees a private table.
DATASET_MODULES = {
    "fedbnsl_client.data.dataset",
    "fedbnsl_client.data.dask_table",
    "fedbnsl_client.participant",
    "fedbnsl_client.join_run",
    "fedbnsl_client.data.plan_fit",  # shares of records, for its own site alone
    "fedbnsl_client.site.admission",
    "fedbnsl_client.site.folder",
    "fedbnsl_client.data.network_rows",  # rows to predict, for its own site alone
    "fedbnsl_client.refit",
    "fedbnsl_client.site.doctor",
    "fedbnsl_client.site.options",
    "fedbnsl_client.cli",
    "fedbnsl_workbench.simulate",
    "fedbnsl_research.bench.tables",  # generated tables
    "fedbnsl_workbench.tables.folder",  # read_header alone
    "fedbnsl_research.trials.harness",
    "fedbnsl_research.tuning.held_out",  # simulates over public tables, without one of them
    "fedbnsl_research.tuning.tune",  # simulates over generated or public tables
    "fedbnsl_client.data.frames",  # tables of a program
    "fedbnsl_workbench.plan_settings",  # what tables lack, by their operator's word alone
    "fedbnsl_workbench.estimator",  # simulates over them; of the module, only the warning
    "fedbnsl_workbench.report.scales",  # scales for a report, only where the tables are named
    "fedbnsl_research.bench.wire_bytes",
    "fedbnsl_research.bench.growth",
    "fedbnsl_research.bench.load",
    "fedbnsl_research.bench.secure_aggregation",  # generated tables
    "fedbnsl_research.bench.attacks",
    "fedbnsl_research.bench.regressions",  # generated tables
    "fedbnsl_research.bench.discrete",  # generated tables
    "fedbnsl_research.bench.network_answers",  # generated tables
    "fedbnsl_workbench.cli",
}

# Rule 8 of CONTRIBUTING.md: what is for reports and studies, which neither a site nor the coordinator has.
EXTRA = ("jinja2", "markupsafe", "joblib", "matplotlib", "sklearn", "pandas", "distributed", "dagma")

# Whoever looks for what a process sends, and to whom, finds traces in one place.
TELEMETRY = ("opentelemetry", "requests")
TELEMETRY_MODULES = {"fedbnsl.events.traces"}

DRAWERS = {"util", "utils", "helper", "helpers", "manager", "managers", "base", "misc", "common", "tools"}


@dataclass(frozen=True)
class Module:
    """One source file. `known` are the names of all modules, to tell `from package import module` from other names."""

    name: str
    source: str
    known: frozenset[str] = frozenset()

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.source)

    @property
    def imports(self) -> set[str]:
        """Dotted names of all imported modules, wherever in the file they are imported."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: relative import"
                assert node.module is not None
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found.add(whole if whole in self.known or whole == "numpy.random" else node.module)
        return found

    @property
    def calls(self) -> set[str]:
        """Last names of everything that is called: f(), m.f() and a.b.f() all give f; not those of np.linalg."""
        functions = [node.func for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        names = {f.id for f in functions if isinstance(f, ast.Name)}
        attributes = [f for f in functions if isinstance(f, ast.Attribute)]
        return names | {f.attr for f in attributes if ast.unparse(f.value) != "np.linalg"}

    @property
    def numpy_random(self) -> set[str]:
        """What is used of numpy's random module, such as `default_rng` in np.random.default_rng."""
        return {
            node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random")
        }


def is_part(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def is_maths(name: str) -> bool:
    return is_part(name, MATHS) and not is_part(name, NOT_MATHS)


_parsed = cache(ast.parse)


@cache
def modules() -> list[Module]:
    paths: dict[str, Path] = {}
    for package, root in ROOTS.items():
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not is_part(name, (GENERATED,)):
                paths[name] = path
    known = frozenset(paths) | {"fedbnsl.wire"}
    return [Module(name, path.read_text(encoding="utf-8"), known) for name, path in paths.items()]


# ---- the rules: each yields what is wrong with a module -------------------------------------------------------------


def packages_import_only_what_they_may(module: Module) -> Iterator[str]:
    """Rule 1."""
    for name in module.imports:
        package = name.partition(".")[0]
        if package in ROOTS and package not in PACKAGES[module.package]:
            yield name


def grpc_and_protobuf_stay_at_the_edge(module: Module) -> Iterator[str]:
    """Rule 2."""
    for name in module.imports:
        if is_part(name, GRPC) and not is_part(module.name, GRPC_ROOMS):
            yield name
        if is_part(name, PROTOBUF) and not is_part(module.name, PROTOBUF_ROOMS):
            yield name


def pages_are_made_in_their_rooms(module: Module) -> Iterator[str]:
    if not is_part(module.name, WEB_ROOMS):
        yield from (name for name in module.imports if is_part(name, WEB))


def mathematics_is_pure(module: Module) -> Iterator[str]:
    """Rule 3."""
    if not is_maths(module.name):
        return
    for name in module.imports:
        known = name == "fedbnsl" or is_part(name, (*MATHS_EXTERNAL, *MATHS_INTERNAL)) or name in MATHS_STANDARD
        if not known and not is_maths(name):
            yield name
        # Points that fill a space evenly are no draws.
        if is_part(name, ("numpy.random", "scipy.stats")) and name != "scipy.stats.qmc":
            yield name
    yield from module.calls & NOT_IN_MATHS
    yield from module.numpy_random - {"Generator"}  # generators are arguments


def transport_does_no_mathematics(module: Module) -> Iterator[str]:
    """Rule 4."""
    if is_part(module.name, TRANSPORT):
        yield from (name for name in module.imports if is_maths(name))


def the_state_is_made_in_one_place(module: Module) -> Iterator[str]:
    """Rule 5."""
    if "AdmmState" in module.calls and module.name not in STATE_MODULES:
        yield "AdmmState(...)"


def steps_are_taken_in_one_place(module: Module) -> Iterator[str]:
    """Rules 5 and 8: no kind of run has a round engine of its own."""
    for step, allowed in STEP_MODULES.items():
        if step in module.calls and module.name not in allowed:
            yield f"{step}(...)"


def a_site_draws_at_random_in_one_place(module: Module) -> Iterator[str]:
    """Rule 6."""
    if module.package not in ("fedbnsl", "fedbnsl_client") or module.name in RANDOM_MODULES:
        return
    yield from (name for name in module.imports if is_part(name, RANDOM))
    yield from module.numpy_random - {"Generator"}
    if "urandom" in module.calls:
        yield "os.urandom"


def a_private_table_stays_where_it_is(module: Module) -> Iterator[str]:
    """Rule 7."""
    if module.name in DATASET_MODULES:
        return
    if "fedbnsl_client.data.dataset" in module.imports:
        yield "fedbnsl_client.data.dataset"
    if any(isinstance(node, ast.Name | ast.Attribute) and _last(node) == "Dataset" for node in ast.walk(module.tree)):
        yield "Dataset"


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def only_reports_and_studies_use_their_packages(module: Module) -> Iterator[str]:
    """Neither a site nor the coordinator has them."""
    if module.package not in ("fedbnsl_workbench", "fedbnsl_research"):
        yield from (name for name in module.imports if is_part(name, EXTRA))


def traces_are_sent_from_one_place(module: Module) -> Iterator[str]:
    """It knows no table, and sends only where an option says."""
    if module.name not in TELEMETRY_MODULES:
        yield from (name for name in module.imports if is_part(name, TELEMETRY))


def toml_is_parsed_in_one_place(module: Module) -> Iterator[str]:
    """Which bounds its depth and skips a byte order mark, whatever the file is for."""
    if module.name != "fedbnsl.files.toml_text":
        yield from (name for name in module.imports if is_part(name, ("tomllib",)))


def no_module_is_a_drawer(module: Module) -> Iterator[str]:
    last = module.name.rpartition(".")[2]
    if set(last.lower().strip("_").split("_")) & DRAWERS:
        yield last


Rule = Callable[[Module], Iterator[str]]
RULES: list[Rule] = [
    packages_import_only_what_they_may,
    grpc_and_protobuf_stay_at_the_edge,
    pages_are_made_in_their_rooms,
    mathematics_is_pure,
    transport_does_no_mathematics,
    the_state_is_made_in_one_place,
    steps_are_taken_in_one_place,
    a_site_draws_at_random_in_one_place,
    a_private_table_stays_where_it_is,
    only_reports_and_studies_use_their_packages,
    traces_are_sent_from_one_place,
    toml_is_parsed_in_one_place,
    no_module_is_a_drawer,
]

# One module for each way to break a rule.
BROKEN: list[tuple[Rule, str, str]] = [
    (packages_import_only_what_they_may, "fedbnsl.graphs.graph", "import fedbnsl_server"),
    (packages_import_only_what_they_may, "fedbnsl.cli", "def run():\n    from fedbnsl_workbench.cli import demo"),
    (
        packages_import_only_what_they_may,
        "fedbnsl_server.run.round_loop",
        "from fedbnsl_client.data.dataset import Dataset",
    ),
    (packages_import_only_what_they_may, "fedbnsl_client.cli", "from fedbnsl_server.run import round_loop"),
    (packages_import_only_what_they_may, "fedbnsl_client.cli", "import fedbnsl_workbench.scoring.metrics as m"),
    (grpc_and_protobuf_stay_at_the_edge, "fedbnsl_server.run.round_loop", "import grpc"),
    (grpc_and_protobuf_stay_at_the_edge, "fedbnsl_server.sites.mailbox", "from grpc.aio import Server"),
    (grpc_and_protobuf_stay_at_the_edge, "fedbnsl_workbench.localnet", "import grpc"),
    (grpc_and_protobuf_stay_at_the_edge, "fedbnsl.protocol.messages", "from fedbnsl.wire import values_pb2"),
    (grpc_and_protobuf_stay_at_the_edge, "fedbnsl.protocol.messages", "from fedbnsl import wire"),
    (grpc_and_protobuf_stay_at_the_edge, "fedbnsl_client.cli", "import fedbnsl.wire.values_pb2 as v"),
    (grpc_and_protobuf_stay_at_the_edge, "fedbnsl_server.algorithm.admm", "from google.protobuf import json_format"),
    (pages_are_made_in_their_rooms, "fedbnsl_server.observe.terminal", "from starlette.routing import Route"),
    (pages_are_made_in_their_rooms, "fedbnsl_client.cli", "def page():\n    import uvicorn"),
    (mathematics_is_pure, "fedbnsl_server.algorithm.admm", "import logging"),
    (mathematics_is_pure, "fedbnsl_server.algorithm.admm", "from time import perf_counter"),
    (mathematics_is_pure, "fedbnsl_server.algorithm.global_step", "from pathlib import Path"),
    (mathematics_is_pure, "fedbnsl_client.solvers.pgcd", "import threading"),
    (mathematics_is_pure, "fedbnsl_client.solvers.new", "import structlog"),
    (mathematics_is_pure, "fedbnsl_client.solvers.pgcd", "from fedbnsl_client.data.dataset import Dataset"),
    (mathematics_is_pure, "fedbnsl_client.losses.squared", "from fedbnsl.protocol import codec"),
    (mathematics_is_pure, "fedbnsl_server.algorithm.acyclicity", "import numpy as np\nnp.random.normal()"),
    (mathematics_is_pure, "fedbnsl_server.algorithm.acyclicity", "from numpy import random"),
    (mathematics_is_pure, "fedbnsl_server.algorithm.acyclicity", "from numpy.random import default_rng"),
    (mathematics_is_pure, "fedbnsl_client.privacy.noise", "import secrets"),
    (mathematics_is_pure, "fedbnsl_server.algorithm.admm", "open('state')"),
    (transport_does_no_mathematics, "fedbnsl_client.session", "from fedbnsl_client.solvers import pgcd"),
    (transport_does_no_mathematics, "fedbnsl_client.session", "import fedbnsl_client.losses.squared"),
    (
        transport_does_no_mathematics,
        "fedbnsl_server.grpc_api.servicer",
        "from fedbnsl_server.algorithm.admm import advance",
    ),
    (transport_does_no_mathematics, "fedbnsl.protocol.codec", "from fedbnsl_server.algorithm import acyclicity"),
    (the_state_is_made_in_one_place, "fedbnsl_server.run.round_loop", "state = AdmmState(1, W, 0.0)"),
    (the_state_is_made_in_one_place, "fedbnsl_workbench.simulate", "state = admm.AdmmState(1, W, 0.0)"),
    (steps_are_taken_in_one_place, "fedbnsl_workbench.simulate", "state = advance(state, updates, plan, mask)"),
    (
        steps_are_taken_in_one_place,
        "fedbnsl_server.grpc_api.servicer",
        "state = admm.advance(state, updates, plan, mask)",
    ),
    (steps_are_taken_in_one_place, "fedbnsl_workbench.simulate", "pgcd.solve(loss, B, W, beta)"),
    (a_site_draws_at_random_in_one_place, "fedbnsl_client.participant", "import random"),
    (a_site_draws_at_random_in_one_place, "fedbnsl_client.privacy.noise", "from secrets import randbelow"),
    (a_site_draws_at_random_in_one_place, "fedbnsl_client.solvers.dp_pgcd", "from secrets import randbelow"),
    (a_site_draws_at_random_in_one_place, "fedbnsl.privacy.zcdp", "import numpy as np\nrng = np.random.default_rng(0)"),
    (a_site_draws_at_random_in_one_place, "fedbnsl_client.data.fingerprint", "import os\nos.urandom(8)"),
    (a_private_table_stays_where_it_is, "fedbnsl_client.session", "from fedbnsl_client.data.dataset import Dataset"),
    (a_private_table_stays_where_it_is, "fedbnsl_client.session", "from fedbnsl_client.data import dataset"),
    (a_private_table_stays_where_it_is, "fedbnsl.protocol.messages", "def send(table: Dataset): ..."),
    (
        a_private_table_stays_where_it_is,
        "fedbnsl_workbench.scoring.metrics",
        "from fedbnsl_client.data.dataset import Dataset",
    ),
    (traces_are_sent_from_one_place, "fedbnsl_client.join_run", "from opentelemetry import trace"),
    (only_reports_and_studies_use_their_packages, "fedbnsl_server.observe.terminal", "import matplotlib"),
    (
        only_reports_and_studies_use_their_packages,
        "fedbnsl_client.data.dataset",
        "def read():\n    from sklearn import linear_model",
    ),
    (toml_is_parsed_in_one_place, "fedbnsl_client.budget.policy", "import tomllib"),
    (no_module_is_a_drawer, "fedbnsl.utils", ""),
    (no_module_is_a_drawer, "fedbnsl_server.round_manager", ""),
    (no_module_is_a_drawer, "fedbnsl_client.solvers.base", ""),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    broken = {module.name: sorted(set(rule(module))) for module in modules()}
    assert {name: what for name, what in broken.items() if what} == {}


@pytest.mark.parametrize(("rule", "name", "source"), BROKEN, ids=lambda part: getattr(part, "__name__", None))
def test_a_module_that_breaks_a_rule_is_found(rule: Rule, name: str, source: str) -> None:
    known = frozenset(module.name for module in modules()) | {"fedbnsl.wire"}
    assert list(rule(Module(name, source, known)))


def test_every_rule_has_a_module_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


def test_the_modules_that_the_rules_are_about_are_found() -> None:
    found = {module.name for module in modules()}
    rooms = (*WEB_ROOMS, *GRPC_ROOMS, *PROTOBUF_ROOMS, *MATHS, *NOT_MATHS, *MATHS_INTERNAL, *TRANSPORT)
    assert [name for name in (*rooms, *STATE_MODULES, *DATASET_MODULES) if name not in found] == []
    assert all(package in found for package in ROOTS)


def test_the_modules_that_take_the_steps_do_take_them() -> None:
    calls = {module.name: module.calls for module in modules()}
    assert "advance" in calls["fedbnsl_server.run.round_loop"]
    assert "advance_admm" in calls["fedbnsl_server.rounds.admm"]
    assert "global_step" in calls["fedbnsl_server.algorithm.admm"]
    assert "solve" in calls["fedbnsl_client.solvers.local_solver"]
    assert "AdmmState" in calls["fedbnsl_server.algorithm.admm"]


def test_every_kind_of_round_has_its_module_on_both_sides() -> None:
    """A kind is found by its name: three modules, and its fields in the two messages."""
    found = {module.name for module in modules()}
    for room in ("fedbnsl.rounds", "fedbnsl_server.rounds", "fedbnsl_client.rounds"):
        kinds = {f"{room}.{kind}" for kind in KINDS}
        assert {name for name in found if is_part(name, (room,))} == {room, f"{room}.kinds", *kinds}
    for message in (federation.Task, federation.Update):
        fields = {field.name for field in message.DESCRIPTOR.oneofs_by_name["content"].fields}
        # Part of secure aggregation belongs to a round of any kind.
        assert {field.removesuffix("_dense").removesuffix("_steps") for field in fields} - {"masked_sum"} == set(KINDS)


def test_nothing_is_compared_with_the_name_of_a_kind_of_round() -> None:
    """Others ask for what a kind says of itself: a new one is then found everywhere."""
    by_name = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for root in ROOTS.values()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and any(map(_names_a_kind, node.comparators))
    ]
    assert by_name == []


def _names_a_kind(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Constant) and one.value in KINDS for one in ast.walk(node))
