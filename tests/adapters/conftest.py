"""A lake of its own for a test."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from adapters.lake import ensure_tables, open_catalog
from contracts.settings import Settings


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """An embedded catalog with all tables of MQTT, empty."""
    catalog = open_catalog(Settings(home=tmp_path))
    ensure_tables(catalog)
    return catalog
