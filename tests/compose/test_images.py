"""The images of a site and of the coordinator, as an engine runs them: little in them, nothing that can be written."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker
import pytest
from docker.models.containers import Container

IMAGES = ("fedbnsl-coordinator", "fedbnsl-site")

log = logging.getLogger(__name__)
each_image = pytest.mark.parametrize("image", IMAGES)

pytestmark = pytest.mark.timeout(660)  # the first test waits for the images to be built

INVENTORY = """
import json, os
from importlib.util import find_spec
names = ("fedbnsl", "fedbnsl_client", "fedbnsl_server", "fedbnsl_workbench", "pip", "setuptools", "hatchling")
packages = [name for name in names if find_spec(name)]
writable = [folder for folder, _, _ in os.walk("/opt/fedbnsl") if os.access(folder, os.W_OK)]
print(json.dumps({"uid": os.getuid(), "packages": packages, "writable": writable}))
"""

# By image: what numba says of its cache, then the seconds.
WARM_UP = {
    image: f"""
import time
from fedbnsl.plan.plan import Plan
from {module} import warm_up
started = time.perf_counter()
warm_up({plan})
print(time.perf_counter() - started)
"""
    for image, module, plan in (
        ("fedbnsl-coordinator", "fedbnsl_server.run.coordinator", "Plan.load('private')"),
        ("fedbnsl-site", "fedbnsl_client.solvers.local_solver", ""),
    )
}


@contextmanager
def started(engine: docker.DockerClient, image: str, *command: str, **options: Any) -> Iterator[Container]:
    """A container as docker-compose.yml hardens it, and without any network; removed with its volumes."""
    container = engine.containers.run(
        image,
        list(command),
        detach=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        network_mode="none",
        **{"read_only": True, "tmpfs": {"/tmp": "mode=1777"}, **options},
    )
    try:
        yield container
    finally:
        container.remove(force=True, v=True)


def run(engine: docker.DockerClient, image: str, *command: str, **options: Any) -> str:
    """What a command that must succeed prints, on either output."""
    with started(engine, image, *command, **options) as container:
        code = container.wait(timeout=None)["StatusCode"]  # as long as the test may last
        said: str = container.logs().decode()
    assert code == 0, said
    return said


def python(engine: docker.DockerClient, image: str, program: str, **options: Any) -> str:
    return run(engine, image, "-c", program, entrypoint="python", **options)


@pytest.mark.parametrize(
    ("image", "beside"), [("fedbnsl-coordinator", ["fedbnsl_server", "fedbnsl_workbench"]), ("fedbnsl-site", [])]
)
def test_an_image_holds_the_distributions_of_its_role_and_no_installer(engine, image, beside) -> None:
    inventory = json.loads(python(engine, image, INVENTORY))
    assert inventory["packages"] == ["fedbnsl", "fedbnsl_client", *beside]


@each_image
def test_an_image_runs_as_a_user_who_could_not_change_the_program_anyhow(engine, image) -> None:
    inventory = json.loads(python(engine, image, INVENTORY, read_only=False))
    assert (inventory["uid"], inventory["writable"]) == (10001, [])


@each_image
def test_a_site_has_no_command_of_the_coordinator(engine, image) -> None:
    shown = run(engine, image, "--help")
    assert "  participant " in shown
    assert ("  coordinator " in shown) == (image == "fedbnsl-coordinator")
    assert "  bench " not in shown


@each_image
def test_a_container_finds_every_kernel_compiled_and_starts_quickly(engine, image) -> None:
    shipped = python(engine, image, WARM_UP[image], environment={"NUMBA_DEBUG_CACHE": "1"})
    empty = {"NUMBA_DEBUG_CACHE": "1", "NUMBA_CACHE_DIR": "/tmp/empty"}
    compiled = python(engine, image, WARM_UP[image], environment=empty)
    assert "data loaded" in shipped
    assert "data saved" not in shipped
    log.info("%s warm-up: %s s with its kernels, %s s without", image, shipped.split()[-1], compiled.split()[-1])


@each_image
def test_a_kernel_that_the_image_lacks_is_compiled_and_not_an_error(engine, image) -> None:
    other = {"NUMBA_DEBUG_CACHE": "1", "NUMBA_CPU_NAME": "generic"}
    assert "data saved" in python(engine, image, WARM_UP[image], environment=other)


def test_a_site_refits_a_graph_on_its_own_table_in_a_read_only_container(engine, tmp_path) -> None:
    tmp_path.chmod(0o755)
    rows = [(x, 2.0 * x + (-1) ** x) for x in range(-30, 31)]
    (tmp_path / "table.csv").write_text("a,b\n" + "".join(f"{x},{y}\n" for x, y in rows), encoding="utf-8")
    (tmp_path / "edges.csv").write_text("source,target,weight\na,b,1.0\n", encoding="utf-8")
    mounted = {str(tmp_path): {"bind": "/in", "mode": "ro"}}
    command = ("participant", "refit", "/in/edges.csv", "--data", "/in/table.csv", "--out", "/tmp/out", "--json")
    refitted = json.loads(run(engine, "fedbnsl-site", *command, volumes=mounted))
    expected = sum(x * y for x, y in rows) / sum(x * x for x, _ in rows)
    assert str(round(expected, 9)) in json.dumps(refitted)


def test_a_coordinator_that_is_told_to_stop_ends_by_itself(engine) -> None:
    serve = "coordinator serve fed-sparse --variables a,b --insecure --listen 127.0.0.1:50051 --out /runs/run"
    folders = {"/tmp": "mode=1777", "/runs": "mode=700,uid=10001"}
    with started(engine, "fedbnsl-coordinator", *serve.split(), tmpfs=folders) as container:
        until = time.monotonic() + 60
        while b"listening on" not in container.logs():
            assert time.monotonic() < until, container.logs().decode()
            time.sleep(0.1)
        container.stop(timeout=30)  # after which it would be killed: 137
        assert container.wait(timeout=60)["StatusCode"] != 137, container.logs().decode()


@each_image
def test_the_environment_of_an_image_stays_below_500_mb(engine, image) -> None:
    size_mb = int(run(engine, image, "-sm", "/opt/fedbnsl", entrypoint="du").split()[0])
    log.info("%s: %d MB, of it /opt/fedbnsl %d MB", image, engine.images.get(image).attrs["Size"] / 1e6, size_mb)
    assert size_mb < 500
