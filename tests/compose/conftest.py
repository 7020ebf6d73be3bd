"""Shared by the tests of images and of containers: the engine, or a skip that says what is missing."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

BUILD_TIMEOUT_S = 600


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A client of the engine, with both images built from this checkout."""
    # Asked by the command, which the build needs as well; a client that finds no engine leaves its socket open.
    if shutil.which("docker") is None:
        pytest.skip("needs Docker: there is no command `docker`")
    answer = subprocess.run(["docker", "version"], capture_output=True, text=True, timeout=30)
    if answer.returncode != 0:
        pytest.skip(f"needs a Docker engine that answers: {answer.stderr.strip()}")
    subprocess.run([Path(__file__).with_name("make-images")], check=True, timeout=BUILD_TIMEOUT_S)
    client = docker.from_env()
    yield client
    client.close()
