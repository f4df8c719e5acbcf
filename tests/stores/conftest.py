"""A process for the jobs of all files."""

import os
from collections.abc import Iterator

import pytest

from manifold.settings import Settings
from pipelines.spark.conf import POSTGRESQL_JAR, S3_JAR
from tests.stores.places import environment
from tests.stores.servers import BOTO3, require
from tests.stores.stages import Stages, stages_with


@pytest.fixture(scope="package")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """A process for jobs that bring their settings: a start of Spark takes as long as such a job.

    It finds boto3, which Manifold does not ship, and only signatures need.
    """
    require(*(Settings().jars / jar for jar in (POSTGRESQL_JAR, S3_JAR)))
    path = os.pathsep.join(filter(None, [str(BOTO3), os.environ.get("PYTHONPATH")]))
    with stages_with(environment({"PYTHONPATH": path}), tmp_path_factory.mktemp("jobs") / "stages.log") as process:
        yield process
