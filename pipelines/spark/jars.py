"""Fetches Spark's extra jars once: `python -m pipelines.spark.jars`, those that the settings need, or `--all`.

Spark's own Ivy resolves them, and each must have its known SHA-256. Spark's variable DEFAULT_ARTIFACT_REPOSITORY names
a repository other than Maven Central.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from manifold.contracts.errors import Permanent, Retryable
from manifold.runtime.command import run_command
from manifold.settings import load_settings
from pipelines.spark.conf import ICEBERG_JAR, POSTGRESQL_JAR, S3_JAR, SQLITE_JAR, jars_for

COORDINATES = {
    ICEBERG_JAR: "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    SQLITE_JAR: "org.xerial:sqlite-jdbc:3.54.1.0",
    POSTGRESQL_JAR: "org.postgresql:postgresql:42.7.14",
    S3_JAR: "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
}
SHA256 = {
    ICEBERG_JAR: "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    SQLITE_JAR: "f8dce420a6016278497f4f0560f65602b9db858de141b541cf91a4644ebe4639",
    POSTGRESQL_JAR: "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
    S3_JAR: "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
}
RESOLVE_S = 600
# Resolves the packages as its JVM starts, then stops.
RESOLVE = """
import sys
from pyspark.sql import SparkSession
conf = {"spark.jars.packages": sys.argv[1], "spark.jars.ivy": sys.argv[2], "spark.ui.enabled": "false"}
conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
builder = SparkSession.builder.master("local[1]")
for name, value in conf.items():
    builder = builder.config(name, value)
builder.getOrCreate().stop()
"""


def fetch(folder: Path, names: Sequence[str]) -> list[str]:
    """Ensure that `folder` has the named jars, byte for byte; return the names of those that were fetched.

    Raises:
        Retryable: the repository could not be reached.
        Permanent: a fetched jar is not the one that was tested.
    """
    missing = [name for name in names if not _is_right(folder / name, name)]
    if missing:
        with tempfile.TemporaryDirectory(prefix="manifold-ivy-") as ivy:
            _resolve([COORDINATES[name] for name in missing], ivy)
            folder.mkdir(parents=True, exist_ok=True)
            for name in missing:
                _take(name, Path(ivy) / "jars", folder)
    return missing


def _resolve(coordinates: list[str], ivy: str) -> None:
    command = [sys.executable, "-c", RESOLVE, ",".join(coordinates), ivy]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RESOLVE_S, check=False)
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        remedy = "check the network, or name another repository in DEFAULT_ARTIFACT_REPOSITORY"
        raise Retryable(f"Spark could not resolve {', '.join(coordinates)}; {remedy}. It said:\n{output}")


def _take(name: str, resolved: Path, folder: Path) -> None:
    found = next(iter(resolved.glob(f"*_{name}")), None)
    if found is None or not _is_right(found, name):
        seen = "no such file" if found is None else _sha256(found)
        raise Permanent(f"{name} has SHA-256 {seen}, not {SHA256[name]}; do not use this repository")
    part = folder / f"{name}.part"
    shutil.copyfile(found, part)
    part.replace(folder / name)  # atomically


def _is_right(file: Path, name: str) -> bool:
    return file.is_file() and _sha256(file) == SHA256[name]


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def main() -> int:
    """Fetch into the folder of the setting `jars`; return the exit status."""

    def work() -> str:
        settings = load_settings()
        fetched = fetch(settings.jars, list(COORDINATES) if sys.argv[1:] == ["--all"] else jars_for(settings))
        return f"{settings.jars}: {', '.join(fetched) or 'nothing to fetch'}"

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
