"""A process for the jobs of several files."""

import os
from collections.abc import Iterator

import pytest

from tests.stores.places import Deployed, settings_of, variables_of
from tests.stores.servers import BOTO3
from tests.stores.stages import Stages
from tests.support.servers import Server


@pytest.fixture(scope="package")
def proxied_jobs(tmp_path_factory: pytest.TempPathFactory, redis_server: Server) -> Iterator[Stages]:
    """A process for jobs on lakes behind a proxy, which bring their settings: a start of Spark takes as long as such a job.

    It finds boto3, which Manifold does not ship, and only signatures need.
    """
    folder = tmp_path_factory.mktemp("proxied")
    path = os.pathsep.join(filter(None, [str(BOTO3), os.environ.get("PYTHONPATH")]))
    variables = variables_of(folder, redis_server)
    with Deployed(settings_of(variables), {**variables, "PYTHONPATH": path}, folder).staging() as jobs:
        yield jobs
