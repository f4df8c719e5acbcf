"""A lake and an archive for each test, over one shared Spark."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from manifold.archive.segment import Interval, Selection
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.tables import META, Table
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.sightings import folded
from manifold.settings import Settings
from pipelines.ingest import backlog
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write import ingest
from pipelines.spark.session import configure
from tests.conftest import for_few_rows
from tests.pipelines import plain
from tests.pipelines.lakes import Lake, keep, new_lake
from tests.pipelines.makers import at


def cached_frames(spark: SparkSession) -> set[int]:
    """The ids of the data that Spark keeps because a frame was persisted and not unpersisted."""
    return set(spark.sparkContext._jsc.getPersistentRDDs())


@dataclass
class SparkLake:
    """Settings over a temporary folder, with a Spark session and PyIceberg on the same lake."""

    settings: Settings
    open_spark: Callable[[], SparkSession]
    catalog: Catalog

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started on first use: tests without Spark do not wait for it."""
        return new_session(self.open_spark(), self.settings)

    def write(self, stream: Stream, envelopes: Sequence[Envelope], *, node: int = 0) -> str:
        """Write a segment of the archive as the recorder does; return its path below the root."""
        path = segment_path(stream, envelopes[0].seq, node)
        file = self.file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow(envelopes), file)
        return path

    def append(self, table: Table, rows: list[dict[str, Any]]) -> None:
        """Append rows to main; omitted columns are null."""
        complete = [{c.name: row.get(c.name) for c in table.columns} for row in rows]
        self.catalog.load_table(table.identifier).append(pa.Table.from_pylist(complete, schema=table.arrow_schema))

    def run(self, run_id: str, ms: int = 0, part: Selection = None) -> Run:
        """A run over this lake that begins at this millisecond."""
        return Run(self.spark, self.catalog, self.settings, run_id, at(ms), part)

    def ingest(self, run_id: str = "run", interval: Interval | None = None, *, ms: int = 0) -> Ingested:
        """A whole run without its audit."""
        done = ingest(self.run(run_id, ms, interval))
        publish(self.catalog, run_id)
        return done

    def ingest_plainly(self, run_id: str = "run", ms: int = 0) -> None:
        """A whole run without its audit and without Spark."""
        ensure_tables(self.catalog)
        plain.ingest(self.catalog, self.settings, run_id=run_id, now=at(ms))

    def file(self, path: str) -> Path:
        return self.settings.home / "archive" / path

    def rows(self, table: Table, *columns: str) -> list[Any]:
        """Main's rows in the order of their first columns: tuples, or values if one column is requested."""
        return in_order(self.catalog.load_table(table.identifier).scan(selected_fields=columns or ("*",)).to_arrow(), *columns)

    def seen(self, *columns: str) -> list[Any]:
        """The same for `sdv_fanout_meta` folded: one row for each payload."""
        return in_order(folded(self.catalog.load_table(META.identifier).scan().to_arrow()), *columns)


@dataclass(frozen=True)
class Kept:
    """A lake that was filled once, for several tests."""

    lake: SparkLake
    template: Lake

    def renewed(self) -> SparkLake:
        """The lake as it was filled."""
        self.template.renew()
        return replace(self.lake, catalog=open_catalog(self.lake.settings))


def kept(lake: SparkLake) -> Kept:
    """Keep a lake as it is now."""
    return Kept(lake, keep(lake.settings, lake.settings.home.with_name("kept")))


def in_order(rows: pa.Table, *columns: str) -> list[Any]:
    """Rows as sorted tuples of these columns (none: all), or sorted values if one column is requested."""
    found = sorted(zip(*(rows[c].to_pylist() for c in columns or rows.column_names), strict=True), key=str)
    return [row[0] for row in found] if len(columns) == 1 else found


def new_session(spark: SparkSession, settings: Settings) -> SparkSession:
    """Another session in the same JVM, over the lake of these settings."""
    session = spark.newSession()
    configure(session, settings)
    return for_few_rows(session)


@pytest.fixture
def shared_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give jobs that open a session one of the shared Spark, which starts for the first of them and outlives them."""

    @contextmanager
    def started(settings: Settings, *_: object) -> Iterator[SparkSession]:
        yield new_session(request.getfixturevalue("one_spark"), settings)

    monkeypatch.setattr("pipelines.spark.session._jvm_session", started)


@pytest.fixture
def unaudited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each run pass its audit at once, for tests of what is around it."""
    monkeypatch.setattr(backlog, "audit_run", plain.pass_audit)


@pytest.fixture(scope="session")
def new_spark_lake(request: pytest.FixtureRequest) -> Callable[..., SparkLake]:
    """Create one in a folder."""

    def make(home: Path) -> SparkLake:
        settings = Settings(home=home)
        return SparkLake(settings, lambda: request.getfixturevalue("one_spark"), open_catalog(settings))

    return make


@pytest.fixture
def spark_lake(new_spark_lake: Callable[..., SparkLake], tmp_path: Path) -> SparkLake:
    return new_spark_lake(tmp_path / "home")


@pytest.fixture
def another_spark_lake(new_spark_lake: Callable[..., SparkLake], tmp_path: Path) -> SparkLake:
    return new_spark_lake(tmp_path / "another")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake without Spark; `renew` it at the beginning of a test."""
    return new_lake(tmp_path_factory.mktemp("lake"))
