"""Makes the JVM's class archive of Spark's jars, once, to shorten Spark's start: `python -m pipelines.spark.cds_archive`.

A start of Spark then takes a third less CPU. A small ingest, with its audit, runs for it in a temporary home; the JVM writes
the archive as it exits.
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

RUN_S = 600
MAIN = Path(__file__).parents[1] / "__main__.py"


def make(settings: Settings) -> bool:
    """Make the class archive beside the jars, unless one exists for these jars and this Java; return whether it was made.

    Raises:
        Retryable: the run failed; Spark works without the archive.
    """
    target, note = settings.jars / CLASS_ARCHIVE, settings.jars / f"{CLASS_ARCHIVE}.txt"
    fits = _fits(settings)
    if target.is_file() and note.is_file() and note.read_text() == fits:
        return False
    with tempfile.TemporaryDirectory(prefix="manifold-classes-") as folder:
        made = Path(folder) / CLASS_ARCHIVE
        _run(Path(folder), made, settings)
        part = target.with_suffix(".part")
        part.write_bytes(made.read_bytes())
        part.replace(target)  # atomically: a JVM may be starting
    note.write_text(fits)
    return True


def _fits(settings: Settings) -> str:
    """Fingerprint of this Java and these jars, for which a class archive is valid."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    names = [*(str(jar) for jar in jars), *(str(settings.jars / name) for name in jars_for(settings))]
    return f"{java}{hashlib.sha256(json.dumps(names).encode()).hexdigest()}\n"


def _run(home: Path, made: Path, settings: Settings) -> None:
    own = Settings(home=home, jars=settings.jars)
    _record(own)
    (settings.jars / CLASS_ARCHIVE).unlink(missing_ok=True)  # a JVM that uses an archive cannot write one
    defaults = write_defaults(own, home) / "spark-defaults.conf"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--properties-file", str(defaults), "--master", "local[2]"]
    command += ["--conf", f"spark.driver.extraJavaOptions=-XX:ArchiveClassesAtExit={made} -Xlog:cds=off -Xlog:cds+dynamic=off"]
    command += [str(MAIN), "ingest", "--run-id", "classes", "--no-flush"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MANIFOLD_")}
    env = inherited | {"MANIFOLD_HOME": str(home), "MANIFOLD_JARS": str(settings.jars), "MANIFOLD_FILE": str(home / "none")}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S, check=False, cwd=MAIN.parents[1])
    if done.returncode or not made.is_file():
        output = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise Retryable(f"the class archive could not be made; Spark works without it, only slower to start. It said:\n{output}")


def _record(settings: Settings) -> None:
    """Write an archive with one message of each kind."""
    seq = first_seq_at(datetime.now(UTC))
    trigger = {"ids": ["V1", "V2"], "request_id": "task_classes_1", "data_id": "d1"}
    ended = OutcomeRecord("V1", seq + 1, Outcome.DELIVERED, time.time_ns() // 1_000_000)
    messages = [
        (Stream.DATA, topics.data_topic("d1"), b"payload"),
        (Stream.TRIGGER, topics.TRIGGER, json.dumps(trigger).encode()),
        (Stream.OUTCOME, "outcome", ended.to_wire()),
    ]
    for place, (stream, topic, payload) in enumerate(messages):
        file = settings.home / "archive" / segment_path(stream, seq + place, 0)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow([Envelope(seq + place, datetime_of(seq + place), stream, topic, payload)]), file)


def main() -> int:
    """Make the class archive for the settings of the environment; return the exit status."""

    def work() -> str:
        settings = load_settings()
        made = make(settings)
        return f"{settings.jars / CLASS_ARCHIVE}: {'made' if made else 'nothing to make'}"

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
