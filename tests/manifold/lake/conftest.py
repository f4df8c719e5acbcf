"""A lake of its own for each test."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from manifold.settings import Settings
from tests.support.lake_rows import new_lake


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """An embedded catalog with all MQTT tables, empty."""
    return new_lake(Settings(home=tmp_path))
