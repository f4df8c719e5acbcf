"""The content of a lake in a canonical form."""

import hashlib
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from manifold.contracts.tables import ECQ_SEQNO, ECQ_STATE, EVERY_RUN_TABLE, META, QUALITY, SEGMENTS, Table
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import KeyIsGone
from manifold.lake.sealing import MAGIC, Broken
from manifold.lake.sightings import folded
from tests.pipelines.conftest import SparkLake

Rows = list[dict[str, Any]]
OF_THE_RUN = ("run_id", "ingested_at")
KEY_ID = re.compile(r"(\d{4}-\d{2}-\d{2})\.[0-9a-f]{12}")  # of a day key; only the day is not random


def published(lake: SparkLake, keys: DayKeys) -> dict[str, Rows]:
    """Main's rows by table in the order of their keys; sightings and states are folded as readers do."""
    return {table.name: _rows(lake, keys, table) for table in EVERY_RUN_TABLE}


def audit_results(lake: SparkLake) -> Rows:
    """The last result of each rule of each table: how many rows were audited, and how many break it."""
    found = _read(lake, QUALITY)
    last = max(row["at"] for row in found)
    shown = ("suite", "rule", "severity", "outcome", "judged", "unexpected")
    rows = ({name: row[name] for name in shown} for row in found if row["at"] == last)
    return sorted(rows, key=lambda row: (row["suite"], row["rule"]))


def write(found: dict[str, Rows], folder: Path) -> None:
    """Write a file per table and a line per row."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in found.items():
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        (folder / f"{name}.json").write_text(f"[\n{lines}\n]\n" if rows else "[]\n")


def read(folder: Path) -> dict[str, Rows]:
    """Read what `write` wrote."""
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


def _rows(lake: SparkLake, keys: DayKeys, table: Table) -> Rows:
    rows = _read(lake, table)
    if table is META:
        rows = folded(pa.Table.from_pylist(rows, schema=META.arrow_schema)).to_pylist()
    if table is ECQ_SEQNO:
        rows = list({row["client_id"]: row for row in sorted(rows, key=lambda row: row["last_seq"])}.values())
    if table is ECQ_STATE:  # the earliest acknowledgement counts
        rows = list({_key(table, row): row for row in sorted(rows, key=lambda row: row["acked_at"], reverse=True)}.values())
    return [_plain(lake, keys, table, row) for row in sorted(rows, key=lambda row: _key(table, row))]


def _key(table: Table, row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in table.key)


def _read(lake: SparkLake, table: Table) -> Rows:
    found: Rows = lake.catalog.load_table(table.identifier).scan().to_arrow().to_pylist()
    return [{column.name: row[column.name] for column in table.columns} for row in found]


def _plain(lake: SparkLake, keys: DayKeys, table: Table, row: dict[str, Any]) -> dict[str, Any]:
    if table is SEGMENTS:
        row = {name: value for name, value in row.items() if name not in OF_THE_RUN}
    if (payload := row.get("payload")) is not None:
        row |= {"payload": _shown(lake, keys, row, payload)}
    return {name: _value(value) for name, value in row.items()}


def _shown(lake: SparkLake, keys: DayKeys, row: dict[str, Any], payload: bytes) -> str:
    """SHA-1 and length of a payload, unsealed if necessary; for a refused file, whether the bytes are those of the file."""
    if row["seq"] < 0 and (file := lake.file(row["topic"])).is_file():
        return "the file's bytes" if file.read_bytes() == payload else "other bytes than the file's"
    sealed = ""
    if payload.startswith(MAGIC):
        try:
            payload, sealed = keys.open(payload, seq=row["seq"]), ", sealed"
        except (Broken, KeyIsGone) as exc:
            return f"sealed; {_without_key_id(str(exc))}"
    return f"{hashlib.sha1(payload, usedforsecurity=False).hexdigest()}, {len(payload)} bytes{sealed}"


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return _without_key_id(value) if isinstance(value, str) else value


def _without_key_id(text: str) -> str:
    return KEY_ID.sub(r"\1", text)
