"""Shared by the tests of services and of pods: the Docker engine."""

from collections.abc import Iterator

import docker
import pytest

from container_engine import container_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    with container_engine() as client:
        yield client
