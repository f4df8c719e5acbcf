"""A deployed lake for tests: settings, bucket, and jobs as an operator starts them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts.envelope import Envelope
from manifold.settings import PREFIX, Settings
from pipelines.spark.conf import S3_JAR
from tests.conftest import jvm_for_few_rows
from tests.stores.servers import BUCKET, REST_JARS, VERSITYGW, object_storage, require, rest_catalog
from tests.support.platforms import variables
from tests.support.servers import Server, free_port

WAREHOUSE = f"s3://{BUCKET}/warehouse"


@dataclass(frozen=True)
class Deployed:
    """Settings of a lake in a bucket, and the folder in which the S3 gateway keeps that bucket."""

    settings: Settings
    variables: Mapping[str, str]
    bucket: Path

    def archive(self, *messages: Envelope) -> list[str]:
        """Write segments with these messages using the recorder's code; return their paths."""
        return RecordedSegments(Archive(self.settings.archive, self.settings.s3)).seal(messages, node=0)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job with these settings, on a few rows."""
    return {**os.environ, **jvm_for_few_rows(), **variables}


def variables_of(folder: Path, redis: Server, **settings: object) -> dict[str, str]:
    """Environment variables for these settings, in their own home without a recorder to flush."""
    chosen = {
        "home": folder / "home",
        "redis_port": redis.port,
        "recorder_port": free_port(),
        "api_port": free_port(),
        **settings,
    }
    return variables(**chosen)


def settings_of(variables: Mapping[str, str]) -> Settings:
    """The settings that a process with these variables reads."""
    given: dict[str, Any] = {name.removeprefix(PREFIX).lower(): value for name, value in variables.items()}
    return Settings(**given)


@contextmanager
def on_object_storage(folder: Path, redis: Server, **more: object) -> Iterator[Deployed]:
    """Archive and warehouse in a bucket, tables in a REST catalog."""
    require(VERSITYGW, REST_JARS, Settings().jars / S3_JAR)
    with object_storage(folder / "s3") as s3, rest_catalog(folder / "rest", WAREHOUSE, s3) as uri:
        settings: dict[str, Any] = {
            "catalog_type": "rest",
            "catalog_uri": uri,
            "warehouse": WAREHOUSE,
            "archive_url": f"s3://{BUCKET}/archive",
            "reports": f"s3://{BUCKET}/reports",
            "s3_endpoint": s3.endpoint,
            "s3_region": s3.region,
            "s3_access_key": s3.access_key,
            "s3_secret_key": s3.secret_key,
            **more,
        }
        variables = variables_of(folder, redis, **settings)
        yield Deployed(settings_of(variables), variables, folder / "s3" / "buckets" / BUCKET)
