"""Fetches the jars that Spark needs in addition to its own: `python -m pipelines.spark.jars`.

By default, the jars for the current settings are fetched; with `--all`, the jars for all settings. The Ivy that is part of Spark
downloads them, from Maven Central or from the repository in Spark's environment variable DEFAULT_ARTIFACT_REPOSITORY. Each jar
must have its known SHA-256.
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
RESOLVE_TIMEOUT_S = 600
# A program whose JVM downloads the packages at its start. Arguments: coordinates of the packages, folder for Ivy.
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
    """Fetch the named jars into `folder` unless it has them, with the right SHA-256; return the names of the fetched jars.

    Raises:
        Retryable: the repository could not be reached.
        Permanent: a jar is missing, or does not have the known SHA-256.
    """
    missing = [name for name in names if not _has_known_digest(folder / name, name)]
    if missing:
        with tempfile.TemporaryDirectory(prefix="manifold-ivy-") as ivy:
            _download([COORDINATES[name] for name in missing], ivy)
            folder.mkdir(parents=True, exist_ok=True)
            for name in missing:
                _copy_verified(name, Path(ivy) / "jars", folder)
    return missing


def _download(coordinates: list[str], ivy: str) -> None:
    """Download the packages into the folder `ivy`."""
    command = [sys.executable, "-c", RESOLVE, ",".join(coordinates), ivy]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    remedy = "check the network, or name another repository in DEFAULT_ARTIFACT_REPOSITORY"
    try:
        program = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as exc:
        raise Retryable(f"Spark's download of {', '.join(coordinates)} took more than {RESOLVE_TIMEOUT_S} s; {remedy}") from exc
    if program.returncode:
        output = "\n".join((program.stdout + program.stderr).splitlines()[-15:])
        raise Retryable(f"Spark could not resolve {', '.join(coordinates)}; {remedy}. It said:\n{output}")


def _copy_verified(name: str, downloads: Path, folder: Path) -> None:
    """Copy the jar from Ivy's folder to `folder`; raises `Permanent` if it is missing or has another SHA-256."""
    jar = next(iter(downloads.glob(f"*_{name}")), None)  # Ivy puts the package's group before the name
    if jar is None:
        raise Permanent(f"the repository has sent no {name}; use another repository")
    if not _has_known_digest(jar, name):
        raise Permanent(f"{name} has SHA-256 {_sha256(jar)}, not {SHA256[name]}; do not use this repository")
    part = folder / f"{name}.part"
    shutil.copyfile(jar, part)
    part.replace(folder / name)  # atomic


def _has_known_digest(file: Path, name: str) -> bool:
    return file.is_file() and _sha256(file) == SHA256[name]


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def main() -> int:
    """Fetch jars into the folder in the setting `jars`; return the exit status."""

    def work() -> str:
        settings = load_settings()
        names = list(COORDINATES) if sys.argv[1:] == ["--all"] else jars_for(settings)
        fetched = fetch(settings.jars, names)
        return f"{settings.jars}: {', '.join(fetched) or 'nothing to fetch'}"

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
