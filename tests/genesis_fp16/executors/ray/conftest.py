"""Clusters that the tests of executors share."""

from collections.abc import Iterator

import pytest

from tests.genesis_fp16.executors.ray.ray_cluster import IS_INSTALLED, MISSING, RayCluster


@pytest.fixture(scope="module")
def ray_cluster(request: pytest.FixtureRequest) -> Iterator[RayCluster]:
    """A real Ray cluster of two nodes that have the keys of the bucket.

    Even idle it takes a tenth of a core.
    """
    if not IS_INSTALLED:
        pytest.skip(MISSING)
    cluster = RayCluster(variables=request.getfixturevalue("object_server").variables)
    yield cluster
    cluster.stop()
