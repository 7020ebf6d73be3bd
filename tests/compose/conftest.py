"""Shared by the tests of images and of containers: the engine, with both images built from this checkout."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from container_engine import container_engine

BUILD_TIMEOUT_S = 600


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    with container_engine() as client:
        subprocess.run([Path(__file__).with_name("make-images")], check=True, timeout=BUILD_TIMEOUT_S)
        yield client
