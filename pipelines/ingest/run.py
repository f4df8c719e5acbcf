"""A run of the ingest: its connections and settings, its part of the archive, and its counts."""

import json
import secrets
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from manifold.archive.segment import Selection
from manifold.archive.store import Archive
from manifold.settings import Settings


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the ingest."""

    spark: SparkSession  # connected to the catalog
    catalog: Catalog  # the same catalog in PyIceberg
    settings: Settings
    run_id: str
    now: datetime  # when this audit round of this attempt began, timezone-aware; each round of a run has another instant
    part: Selection = None  # the part of the archive whose new segments are ingested; None: the whole archive

    @property
    def archive(self) -> Archive:
        """The archive with its segments."""
        return Archive(self.settings.archive, self.settings.s3)


def new_run_id(now: datetime) -> str:
    """Generate an id for a run that has none yet."""
    return f"manual_{now:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class Ingested:
    """A run's counts."""

    run_id: str
    segments: int = 0
    read: dict[str, int] = field(default_factory=dict)  # stream → number of messages
    skipped: int = 0  # messages that were skipped, such as those that another segment has (`Plan.skips`)
    # Table → rows in new files, including unchanged rows of rewritten files.
    written: dict[str, int] = field(default_factory=dict)
    refused: int = 0  # rows written to quarantine

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))

    def __add__(self, other: "Ingested") -> "Ingested":
        """Add the counts; the run id is that of `other`."""
        read, written = Counter(self.read), Counter(self.written)
        read.update(other.read)
        written.update(other.written)
        return Ingested(
            other.run_id,
            segments=self.segments + other.segments,
            read=dict(read),
            skipped=self.skipped + other.skipped,
            written=dict(written),
            refused=self.refused + other.refused,
        )

    @classmethod
    def from_json(cls, text: str) -> "Ingested":
        """Parse the output of `to_json`."""
        return cls(**json.loads(text))
