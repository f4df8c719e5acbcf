"""The same pipelines on what a deployed lake stands on, by settings alone: object storage, a REST catalog, PostgreSQL."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.lake import open_catalog, read_data, read_entries
from contracts.settings import PREFIX, load_settings
from contracts.tables import IDS, SEGMENTS
from recorder import _segments
from tests.pipelines.makers import data, trigger
from tests.servers import ROOT, Server
from tests.stores.servers import (
    BUCKET,
    REST_JARS,
    VERSITYGW,
    object_storage,
    postgresql,
    postgresql_programs,
    rest_catalog,
)

REMEDY = "run `make stores`"
RUN_S = 200
VINS = [f"V{n}" for n in range(50)]


@pytest.fixture
def on_object_storage(tmp_path: Path, redis_server: Server) -> Iterator[dict[str, str]]:
    """Archive and warehouse in a bucket, tables in a REST catalog."""
    if not VERSITYGW.exists() or not REST_JARS.exists():
        pytest.skip(f"no S3 gateway or no REST catalog here; {REMEDY}")
    warehouse = f"s3://{BUCKET}/warehouse"
    with object_storage(tmp_path / "s3") as s3, rest_catalog(tmp_path / "rest", warehouse, s3) as uri:
        yield _variables(
            tmp_path,
            redis_server,
            catalog_type="rest",
            catalog_uri=uri,
            warehouse=warehouse,
            archive_url=f"s3://{BUCKET}/archive",
            s3_endpoint=s3.endpoint,
            s3_region=s3.region,
            s3_access_key=s3.access_key,
            s3_secret_key=s3.secret_key,
        )


@pytest.fixture
def on_postgresql(tmp_path: Path, redis_server: Server) -> Iterator[dict[str, str]]:
    """Tables in a SQL catalog that PostgreSQL keeps, files in a folder."""
    if postgresql_programs() is None:
        pytest.skip(f"no PostgreSQL here; {REMEDY}")
    with postgresql(tmp_path / "pg") as uri:
        yield _variables(tmp_path, redis_server, catalog_uri=uri)


def _variables(folder: Path, redis: Server, **settings: str) -> dict[str, str]:
    chosen = {"home": str(folder / "home"), "redis_port": str(redis.port), "spark_driver_memory": "1g", **settings}
    return {f"{PREFIX}{name.upper()}": value for name, value in chosen.items()}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["on_object_storage", "on_postgresql"])
def test_a_deployed_lake_takes_in_an_archive_and_is_read_back(
    place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables: dict[str, str] = request.getfixturevalue(place)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    messages = [data(1, "d1", b"firmware"), trigger(2, VINS, "d1"), trigger(3, VINS[:3], "d1")]
    _segments.Archive(settings.archive, settings.s3).seal(messages, node=0)

    written = _run_all()

    catalog = open_catalog(settings)
    assert written[IDS.name] == len(VINS) + 3
    assert read_data(catalog, "d1") == b"firmware"
    assert [entry.seq for entry in read_entries(catalog, VINS[0])] == [messages[1].seq, messages[2].seq]
    assert catalog.load_table(SEGMENTS.identifier).scan().to_arrow().num_rows == 2


def _run_all() -> dict[str, int]:
    """Rows written by a whole run as an operator starts it, in a process of its own: Spark takes its jars only at its start."""
    command = [sys.executable, "-m", "pipelines", "run_all", "--no-flush"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])["ingested"]["written"]
    return result
