"""The demo's queries of Airflow, the lake and Redis. They block; the demo runs them in threads."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.expressions import EqualTo, In
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome
from manifold.contracts.tables import IDS, OUTCOMES, QUARANTINE, SEGMENTS
from manifold.lake.catalog import open_catalog, where
from manifold.lake.reports import audit_result_path, open_reports, run_page, validation_result
from manifold.runtime.redis import connect
from manifold.sandbox.platform.airflow import url
from manifold.sandbox.platform.airflow_users import logged_in
from manifold.settings import Settings

DAG = "ingest_archives"
DAG_WAIT_S = 600.0
RECORDED_WAIT_S = 120.0
MAX_STDERR_CHARS = 2000  # of a failed rebuild


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Numbers of rows in the lake, and the run that was ingested last."""

    ids: int  # rows of the demo's batch
    delivered: int  # rows of the demo's batch that say delivered
    quarantined: int  # rows of all batches
    run_id: str  # the newest run; empty if there is none


def run_ingest_dag(settings: Settings) -> tuple[str, float]:
    """Trigger the DAG through Airflow's API; return the run's final state, and its duration in seconds."""
    with logged_in(settings, url(settings)) as airflow:
        airflow.wait_known(DAG, within_s=DAG_WAIT_S)
        began = time.monotonic()
        run_id = airflow.trigger_dag(DAG)
        state = airflow.wait(DAG, run_id, within_s=DAG_WAIT_S)
    return state, time.monotonic() - began


def count_rows(settings: Settings, request_id: str) -> RowCounts:
    """Count the batch's rows in the tables of ids and outcomes, and all rows in quarantine, with PyIceberg."""
    catalog = open_catalog(settings)
    ids = catalog.load_table(IDS.identifier).scan(where(EqualTo, "request_id", request_id), ("vin", "seq")).to_arrow()
    seqs = set(ids["seq"].to_pylist())
    delivered = 0
    if seqs:
        outcomes = catalog.load_table(OUTCOMES.identifier).scan(In(term="seq", literals=seqs), ("outcome",)).to_arrow()
        delivered = outcomes["outcome"].to_pylist().count(Outcome.DELIVERED.value)
    quarantined = catalog.load_table(QUARANTINE.identifier).scan().count()
    segments = catalog.load_table(SEGMENTS.identifier).scan(selected_fields=("run_id", "ingested_at")).to_arrow().to_pylist()
    newest_run_id = max(segments, key=lambda row: row["ingested_at"])["run_id"] if segments else ""
    return RowCounts(ids.num_rows, delivered, quarantined, newest_run_id)


def verdict_of(settings: Settings, run_id: str) -> tuple[str, str]:
    """Return the audit's verdict on a run (`passed`, `failed` or `not judged`), and the address of the run's report."""
    reports = open_reports(settings)
    address = reports.address(run_page(run_id))
    result = reports.read(audit_result_path(run_id))
    if result is None:
        return "not judged", address
    return "passed" if json.loads(result)["passed"] else "failed", address


def spark_evidence(settings: Settings, run_id: str) -> tuple[str, str]:
    """Return two signs that Spark did the work: the type of batch that Great Expectations validated, and an application's id.

    The type is `nothing` without a validation result. The id is that of the Spark application that wrote the newest snapshot of
    the ids table, empty if it was not Spark.
    """
    result = open_reports(settings).read(validation_result(run_id, IDS.name))
    batch_type = json.loads(result)["meta"]["batch_spec"]["batch_data"] if result else "nothing"
    snapshot = open_catalog(settings).load_table(IDS.identifier).current_snapshot()
    application_id = ""
    if snapshot is not None and snapshot.summary is not None:
        application_id = snapshot.summary.additional_properties.get("spark.app.id", "")
    return batch_type, application_id


def wait_until_outcomes_recorded(settings: Settings, vehicles: Sequence[Owner]) -> None:
    """Wait until all entries of these vehicles have ended and the recorder has their outcomes.

    Outcomes move from Redis to the journal within a second. If Redis were wiped (`wipe_redis`) before that, the vehicles would
    get the messages again.

    Raises:
        Retryable: an entry has not ended, or an outcome is not recorded, after `RECORDED_WAIT_S` seconds.
    """
    with connect(settings.redis) as redis:

        def are_recorded() -> bool:
            pipe = redis.pipeline(transaction=False)
            for owner in vehicles:
                pipe.exists(keys.pending(owner))
            return not any(pipe.execute()) and not redis.xlen(keys.OUTCOMES)

        retrying = Retrying(
            retry=retry_if_result(lambda recorded: not recorded), wait=wait_fixed(0.05), stop=stop_after_delay(RECORDED_WAIT_S)
        )
        try:
            retrying(are_recorded)
        except RetryError as exc:
            raise Retryable("the outcomes of delivered entries are not recorded; see `manifold status`") from exc


def wipe_redis(settings: Settings) -> int:
    """Empty Redis, as after a lost disk; return the number of pending entries."""
    with connect(settings.redis) as redis:
        pending = sum(int(redis.zcard(key)) for key in redis.scan_iter(match=keys.pending("*"), count=1000))
        redis.flushall()
    return pending


def rebuild() -> tuple[int, float]:
    """Run `manifold rebuild` as an operator would; return the number of queued entries, and the duration in seconds.

    If it fails, the end of its stderr is printed, and the number is 0.
    """
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "manifold.console", "rebuild", "--json"], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode != 0:
        sys.stderr.write(done.stderr[-MAX_STDERR_CHARS:])
        return 0, seconds
    return int(json.loads(done.stdout)["populated"]["queued"]), seconds
