"""A lake that is reset quickly, for tests with many short scenarios on PyIceberg alone."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from tests.pipelines.makers import at
from tests.pipelines.plain import ingest
from tests.pipelines.stepping import Player


@dataclass(frozen=True)
class Lake:
    """A lake and its archive, in a home copied from a template."""

    settings: Settings
    template: Path

    def renew(self) -> None:
        """Empty the tables and the archive, at the same path, because an Iceberg table stores its location."""
        shutil.rmtree(self.settings.home)
        shutil.copytree(self.template, self.settings.home)

    def archive(self, stream: Stream, envelopes: Sequence[Envelope], *, node: int = 0) -> str:
        """Write a segment; return its path below the archive's root."""
        path = segment_path(stream, envelopes[0].seq, node)
        file = self.settings.home / "archive" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow(envelopes), file)
        return path

    def player(self, work: Callable[[SqlCatalog], Any], *, fine: bool = False) -> Player:
        """A player that works on this lake step by step."""
        return Player(self.settings, work, fine=fine)

    def ingesting(self, run_id: str, *, fine: bool = False, ms: int = 0) -> Player:
        """A player that ingests everything new."""
        return self.player(lambda catalog: ingest(catalog, self.settings, run_id=run_id, now=at(ms)), fine=fine)


def new_lake(folder: Path) -> Lake:
    """A lake in this folder."""
    settings = Settings(home=folder / "home")
    ensure_tables(open_catalog(settings))
    return keep(settings, folder / "template")


def keep(settings: Settings, template: Path) -> Lake:
    """Save the current state of the lake of these settings."""
    shutil.copytree(settings.home, template)
    return Lake(settings, template)
