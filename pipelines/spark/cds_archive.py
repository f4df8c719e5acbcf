"""Makes a class archive of Spark's jars, with which the JVM starts faster: `python -m pipelines.spark.cds_archive`.

With the archive, a start of Spark takes a third less CPU. To make it, a small ingest with its audit runs in a temporary home, and
the JVM of this ingest writes the archive at its exit.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pyspark

from manifold.contracts import topics
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.errors import Retryable
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.runtime.command import run_command
from manifold.settings import Settings, load_settings
from pipelines.spark.conf import CLASS_ARCHIVE, jars_for, write_defaults

RUN_TIMEOUT_S = 600
MAIN = Path(__file__).parents[1] / "__main__.py"


def make_class_archive(settings: Settings) -> bool:
    """Make the class archive in the folder of the jars; return whether it was made.

    It is not made if there is one that was made by this Java and from these jars.

    Raises:
        Retryable: the ingest failed. Spark also works without the archive.
    """
    target = settings.jars / CLASS_ARCHIVE
    fingerprint_file = settings.jars / f"{CLASS_ARCHIVE}.txt"
    fingerprint = _fingerprint(settings)
    if target.is_file() and fingerprint_file.is_file() and fingerprint_file.read_text() == fingerprint:
        return False
    fingerprint_file.unlink(missing_ok=True)  # it describes the archive that is replaced
    with tempfile.TemporaryDirectory(prefix="manifold-classes-") as folder:
        archive = Path(folder) / CLASS_ARCHIVE
        _run_ingest(Path(folder), archive, settings)
        part = target.with_suffix(".part")
        part.write_bytes(archive.read_bytes())
        part.replace(target)  # atomic, because a JVM that reads the archive may be starting
    fingerprint_file.write_text(fingerprint)
    return True


def _fingerprint(settings: Settings) -> str:
    """A text that changes with the version of Java and with the set of jars, for which a class archive is valid."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    jars_of_spark = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    added_jars = [settings.jars / name for name in jars_for(settings)]
    paths = [str(jar) for jar in (*jars_of_spark, *added_jars)]
    return f"{java}{hashlib.sha256(json.dumps(paths).encode()).hexdigest()}\n"


def _run_ingest(home: Path, class_archive: Path, settings: Settings) -> None:
    """Run a small ingest in the folder `home`; its JVM writes `class_archive` at its exit."""
    temporary_settings = Settings(home=home, jars=settings.jars)
    _write_messages(temporary_settings)
    (settings.jars / CLASS_ARCHIVE).unlink(missing_ok=True)  # a JVM that uses a class archive cannot write one
    defaults = write_defaults(temporary_settings, home) / "spark-defaults.conf"
    java_options = f"-XX:ArchiveClassesAtExit={class_archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--properties-file", str(defaults), "--master", "local[2]"]
    command += ["--conf", f"spark.driver.extraJavaOptions={java_options}"]
    command += [str(MAIN), "ingest", "--run-id", "classes", "--no-flush"]
    # Only these settings may apply to the ingest, so those of the environment and of a settings file are left out.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MANIFOLD_")}
    env |= {"MANIFOLD_HOME": str(home), "MANIFOLD_JARS": str(settings.jars), "MANIFOLD_FILE": str(home / "none")}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    problem = "the class archive could not be made; Spark works without it, only slower to start"
    try:
        ingest = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, cwd=MAIN.parents[1]
        )
    except subprocess.TimeoutExpired as exc:
        raise Retryable(f"{problem}. It took more than {RUN_TIMEOUT_S} s.") from exc
    if ingest.returncode or not class_archive.is_file():
        output = "\n".join((ingest.stdout + ingest.stderr).splitlines()[-15:])
        raise Retryable(f"{problem}. It said:\n{output}")


def _write_messages(settings: Settings) -> None:
    """Write an archive of messages with a segment for data, a trigger and an outcome, one message each."""
    first_seq = first_seq_at(datetime.now(UTC))
    trigger_seq = first_seq + 1  # the trigger is the second message below
    trigger = {"ids": ["V1", "V2"], "request_id": "task_classes_1", "data_id": "d1"}
    outcome = OutcomeRecord("V1", trigger_seq, Outcome.DELIVERED, time.time_ns() // 1_000_000)
    messages = [
        (Stream.DATA, topics.data_topic("d1"), b"payload"),
        (Stream.TRIGGER, topics.TRIGGER, json.dumps(trigger).encode()),
        (Stream.OUTCOME, "outcome", outcome.to_wire()),
    ]
    for seq, (stream, topic, payload) in enumerate(messages, start=first_seq):
        file = settings.home / "archive" / segment_path(stream, seq, 0)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow([Envelope(seq, datetime_of(seq), stream, topic, payload)]), file)


def main() -> int:
    """Make the class archive for the settings of the environment; return the exit status."""

    def work() -> str:
        settings = load_settings()
        was_made = make_class_archive(settings)
        return f"{settings.jars / CLASS_ARCHIVE}: {'made' if was_made else 'nothing to make'}"

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
