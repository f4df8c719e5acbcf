"""The rows of one small, good run; tests change individual fields."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from expectations import Audit, audit
from manifold.contracts import tables
from manifold.contracts.messages import sha1_hex
from manifold.contracts.names import is_iso_3779_vin
from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.lake.files import Files

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SEQ = first_seq_at(NOON - timedelta(minutes=2))
RUN = "manual__2026-03-01T12:00:00+00:00"
VIN = "1HGCM82633A004352"
LOOKED_UP = (
    "sdv_fanout_data",
    "sdv_fanout_meta",
    "sdv_fanout_ids",
    "ecq_payload",
    "ecq_seqno",
    "sdv_campaigns",
    "ingested_segments",
)
Row = dict[str, Any]


def data(data_id: str = "map-1", payload: bytes = b"tiles", **changed: Any) -> Row:
    right = {"data_id": data_id, "payload": payload, "sha1": sha1_hex(payload), "size_bytes": len(payload), "seq": SEQ}
    return {**right, "first_seen_at": datetime_of(SEQ), **changed}


def meta(data_id: str = "map-1", **changed: Any) -> Row:
    at = datetime_of(SEQ)
    seen = {"first_seen_at": at, "last_seen_at": at, "times_seen": 1}
    return {"data_id": data_id, **seen, "sha1": sha1_hex(b"tiles"), "stored_at": at, **changed}


def entry(seq: int = SEQ + 1, vin: str = VIN, **changed: Any) -> Row:
    return {
        "vin": vin,
        "ts": datetime_of(seq),
        "request_id": "task_map_1",
        "seq": seq,
        "data_id": "map-1",
        "applied": True,
        **dict.fromkeys(("campaign", "wave", "step", "until")),
        "vin_is_iso_3779": is_iso_3779_vin(vin),
        **changed,
    }


def outcome(seq: int = SEQ + 1, vin: str = VIN, **changed: Any) -> Row:
    at = datetime_of(seq)
    times = {"accepted_at": at, "dispatched_at": at, "acknowledged_at": at, "ended_at": at}
    return {
        "vin": vin,
        "seq": seq,
        "outcome": "delivered",
        **times,
        "attempts": 1,
        "reason": None,
        "recorded_seq": seq,
        **changed,
    }


def ecq_message(seq: int = SEQ + 3, **changed: Any) -> Row:
    return {"client_id": "c1", "key": "climate/seat", "seq": seq, "ts": datetime_of(seq), "payload": b"on", **changed}


def ecq_entry(seq: int = SEQ + 3, **changed: Any) -> Row:
    return {"client_id": "c1", "seq": seq, "key": "climate/seat", "ts": datetime_of(seq), "applied": True, **changed}


def ecq_state(acked_seq: int = SEQ + 3, **changed: Any) -> Row:
    at = datetime_of(SEQ + 4)
    return {"client_id": "c1", "acked_seq": acked_seq, "acked_at": at, "epoch": 0, "kind": "acknowledged", **changed}


def ecq_seqno(client_id: str = "c1", **changed: Any) -> Row:
    return {"client_id": client_id, "last_seq": SEQ + 3, **changed}


def plan(seq: int = SEQ + 5, **changed: Any) -> Row:
    text = '{"campaign":"maps-47","data_id":"map-1"}'
    own = {"campaign": "maps-47", "seq": seq, "at": datetime_of(seq), "do": "propose", "by": "ann", "data_id": "map-1"}
    return {**own, "plan": text, "plan_sha256": sha256(text.encode()).hexdigest(), "tzdata": "2026a", **changed}


def event(seq: int = SEQ + 5, **changed: Any) -> Row:
    own = {"campaign": "maps-47", "seq": seq, "at": datetime_of(seq), "do": "propose", "by": "ann", "epoch": 0, "seen": 0}
    return {**own, **dict.fromkeys(("why", "wave", "rule", "counts", "if_version")), "record": b"{}", **changed}


def target(seq: int = SEQ + 5, vin: str = VIN, **changed: Any) -> Row:
    own = {"campaign": "maps-47", "vin": vin, "seq": seq, "added_at": datetime_of(seq), "zone": None, "wave": None}
    return {**own, "vin_is_iso_3779": is_iso_3779_vin(vin), **changed}


def answer(seq: int = SEQ + 6, **changed: Any) -> Row:
    own = {"vin": VIN, "seq": seq, "received_at": datetime_of(seq), "campaign": "maps-47", "release": SEQ + 1}
    return {**own, "status": "done", "reason": None, **changed}


def refused(seq: int = SEQ + 2, **changed: Any) -> Row:
    right = {"seq": seq, "received_at": datetime_of(seq), "stream": "trigger", "topic": "$SDV-FANOUT/trigger"}
    return {**right, "reason": "ids is missing; send a list of VINs", "payload": b"{}", "digest": None, **changed}


def segment(path: str = "trigger/dt=2026-03-01/hour=11/1-0.parquet", **changed: Any) -> Row:
    right = {"path": path, "stream": "trigger", "messages": 2, "first_seq": SEQ, "last_seq": SEQ + 2}
    return {**right, "run_id": RUN, "ingested_at": NOON, "refused_because": None, "began_at": NOON, **changed}


def good() -> dict[str, list[Row]]:
    """The rows of every table, all valid."""
    return {
        "sdv_fanout_data": [data()],
        "sdv_fanout_meta": [meta()],
        "sdv_fanout_ids": [entry()],
        "sdv_fanout_outcomes": [outcome()],
        "ecq_payload": [ecq_message()],
        "ecq_index": [ecq_entry()],
        "ecq_state": [ecq_state()],
        "ecq_seqno": [ecq_seqno()],
        "sdv_campaigns": [plan()],
        "sdv_campaign_events": [event()],
        "sdv_campaign_targets": [target()],
        "sdv_campaign_answers": [answer()],
        "quarantine": [refused()],
        "ingested_segments": [segment()],
    }


def frame(spark: SparkSession, table: str, rows: Sequence[Row]) -> DataFrame:
    """Rows as the table would hold them. Nulls are kept: some rules are about them."""
    contract = next(t for t in tables.EVERY_TABLE if t.name == table)
    schema = from_arrow_schema(pa.schema([(c.name, c.type) for c in contract.columns]))
    made = spark.createDataFrame([tuple(row[c.name] for c in contract.columns) for row in rows], schema)
    return made.coalesce(1).localCheckpoint()  # computed once; later accesses read the checkpoint, not the Python rows


def judged(
    spark: SparkSession,
    rows: Mapping[str, Sequence[Row]],
    reports: Path,
    *,
    stored: Mapping[str, Sequence[Row]] | None = None,
    **changed: Any,
) -> Audit:
    """Audit a run that adds `rows` to tables without other rows; other tables get the rows of a good run.

    `stored` gives all rows of some tables, including those of the run.
    """
    frames = {table: frame(spark, table, found) for table, found in rows.items() if found}
    right: dict[str, Any] = {"run_id": RUN, "as_of": NOON, "reports": Files(reports.as_uri()), "keep": 10}
    whole = {table: found for table, found in good().items() if table in LOOKED_UP} | dict(rows) | dict(stored or {})
    shared = frames.keys() - (stored or {}).keys()
    references = {table: frames[table] if table in shared else frame(spark, table, found) for table, found in whole.items()}
    return audit(frames, **{**right, "references": references, "data_wait": timedelta(hours=1), **changed})
