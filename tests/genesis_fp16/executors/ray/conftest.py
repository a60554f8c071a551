"""Clusters that the tests of executors share."""

from collections.abc import Iterator

import pytest

from tests.genesis_fp16.executors.ray.ray_cluster import IS_INSTALLED, MISSING, RayCluster


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    """A real Ray cluster of two nodes, which even idle takes a tenth of a core; its token file."""
    if not IS_INSTALLED:
        pytest.skip(MISSING)
    cluster = RayCluster()
    yield cluster
    cluster.stop()
