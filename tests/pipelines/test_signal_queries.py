"""The disposition of a device's signals, by command and API; and the keys, by command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.seq import MAX_SEQ, datetime_of, wall_clock_ms
from manifold.history.signals import DeviceSignals, device_signals
from manifold.lake.key_ring import new_key_line
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import NOON_MS, at
from tests.pipelines.signal_makers import Door, readings


@pytest.fixture
def door(tmp_path: Path, spark_lake: SparkLake) -> Door:
    return Door(spark_lake, tmp_path / "ring")


def asked(spark_lake: SparkLake, limit: int = 100, before: int = MAX_SEQ) -> DeviceSignals:
    return device_signals(spark_lake.settings, spark_lake.catalog, "d", limit=limit, before=before)


def manifold(spark_lake: SparkLake, *words: str) -> tuple[int, str]:
    named = {
        "MANIFOLD_HOME": str(spark_lake.settings.home),
        "MANIFOLD_SIGNALS_KEYS_FILE": spark_lake.settings.signals_keys_file,
    }
    done = subprocess.run(
        [sys.executable, "-m", "manifold.console", *words], env=os.environ | named, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def lately(door: Door, ago_ms: int, payload: bytes) -> Envelope:
    """A very recent signal: only the last day of the archive is read."""
    return door.raw(wall_clock_ms() - NOON_MS - ago_ms, "d", payload)


def test_signals_are_listed_once_from_lake_and_archive(spark_lake: SparkLake, door: Door) -> None:
    assert asked(spark_lake).signals == []
    hot = readings(("temperature", 99, "celsius"))
    spark_lake.write(Stream.XRAY_RAW, [door.raw(1, "d", hot), door.raw(2, "d", b"x"), door.raw(3, "e", b"x")])
    spark_lake.ingest()
    new = lately(door, 2000, readings(("humidity", 5, "%")))
    again = door.raw(wall_clock_ms() - NOON_MS - 1000, "d", hot, captured=1)
    spark_lake.write(Stream.XRAY_RAW, [new, again], node=1)
    found = asked(spark_lake)
    assert [(s.captured_at, len(s.readings), [a["type"] for a in s.anomalies]) for s in found.signals] == [
        (at(1), 1, ["temperature_high"]),
        (at(2), 0, []),
        (datetime_of(new.seq), 1, []),
    ]
    assert found.before is None
    newest = asked(spark_lake, limit=2)
    assert [s.captured_at for s in newest.signals] == [at(2), datetime_of(new.seq)]
    assert newest.before is not None
    assert [s.captured_at for s in asked(spark_lake, limit=2, before=newest.before).signals] == [at(1)]


def test_the_commands_list_signals_and_rotate_keys(spark_lake: SparkLake, door: Door, tmp_path: Path) -> None:
    spark_lake.write(Stream.XRAY_RAW, [door.raw(1, "d", readings(("temperature", 99, "celsius")))])
    spark_lake.ingest()
    status, said = manifold(spark_lake, "signals", "show", "d", "--json")
    (signal,) = json.loads(said)["signals"]
    assert status == 0
    assert signal.keys() == {"captured_at", "received_at", "seq", "correlation_id", "readings", "anomalies"}
    assert signal["readings"] == [{"type": "temperature", "value": 99.0, "unit": "celsius"}]
    assert manifold(spark_lake, "signals", "show", "d")[0] == 0
    assert manifold(spark_lake, "signals", "show", "a/b")[0] == 2

    def keys(*words: str) -> Any:
        return json.loads(manifold(spark_lake, "signals", "keys", *words, "--json")[1])

    (key,) = keys("list")["keys"]
    assert (key["day"], key["in_ring"]) == ("2026-03-01", True)
    ring = tmp_path / "ring"
    ring.write_text(f"{new_key_line('next')}\n{ring.read_text()}")
    assert keys("rotate") == {"ring_id": "next", "wrapped": 1, "gone": []}
    ring.write_text(ring.read_text().splitlines()[0])
    assert keys("rotate") == {"ring_id": "next", "wrapped": 0, "gone": []}
    assert [(k["ring_id"], k["in_ring"]) for k in keys("list")["keys"]] == [("next", True)]
    ring.write_text(new_key_line("other"))
    assert keys("rotate")["gone"] == [key["key_id"]]
    status, line = manifold(spark_lake, "signals", "keys", "new", "--id", "k9")
    assert status == 0
    assert line.startswith("k9:")
