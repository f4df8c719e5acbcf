"""The `manifold` command, forked from a process that has imported what commands need: most of a command's CPU time.

That these imports print nothing is asserted in `tests/manifold/console/test_no_noise.py`.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.support.warm import parent_of

LIBRARIES = (
    "aio_pika",
    "httpx",
    "msgspec",
    "packaging.requirements",
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pydantic_settings",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "pyspark.sql",
    "redis",
    "requests",
    "rich",
    "sqlalchemy.dialects.sqlite",
    "structlog",
    "tenacity",
)
WITHIN_S = 200  # for one command that starts a JVM on a busy machine


def plain(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: without the developer's settings, and with a wide terminal."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MANIFOLD_", "PYTHON"))}
    return {**ours, **env, "COLUMNS": "200"}  # a wrapped line looks like noise


def manifold(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        command = parent_of("manifold.console", *LIBRARIES).start(list(arguments), out, plain(env or {}), errors=err)
        try:
            status = command.wait(WITHIN_S)
        except BaseException:
            command.kill()
            raise
        return subprocess.CompletedProcess(["manifold", *arguments], status, out.read_text(), err.read_text())


def ask(settings: Settings, *arguments: str) -> Any:
    """The JSON that a command prints about a running platform."""
    done = manifold(*arguments, "--json", env=environment(settings))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
