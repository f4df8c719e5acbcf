"""Recorders with a real broker and Redis, shared by the tests of a file or private to one test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manifold.recorder.harness import Harness, running_harness


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """For tests that stop nothing and use their own names."""
    with running_harness(tmp_path_factory.mktemp("recorder")) as it:
        yield it


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Harness]:
    """For tests that stop servers or count everything."""
    with running_harness(tmp_path) as it:
        yield it
