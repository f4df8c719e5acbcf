"""X-ray signal messages for the archive, at chosen milliseconds after noon, as the signals service writes them."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.messages import DeviceStatus, RawSignal, parse_raw, parse_status
from manifold.contracts.signals.records import raw_envelope, refused_envelope, status_envelope
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import new_key_line
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, seq_at


def readings(*values: tuple[str, float, str]) -> bytes:
    """A payload with these readings: type, value and unit."""
    return json.dumps({"readings": [{"type": kind, "value": value, "unit": unit} for kind, value, unit in values]}).encode()


class Sealing:
    """Create messages sealed as by the signals service."""

    def __init__(self, keys: DayKeys) -> None:
        self.keys = keys

    def raw(
        self,
        ms: int,
        device_id: str,
        payload: bytes,
        *,
        captured: int | None = None,
        sealed: bytes | None = None,
        node: int = 0,
        metadata: dict[str, Any] | None = None,
    ) -> Envelope:
        """A raw signal, captured at millisecond `captured` if given, otherwise `ms`."""
        message: dict[str, Any] = {
            "deviceId": device_id,
            "capturedAt": at(ms if captured is None else captured).isoformat(),
            "payload": base64.b64encode(payload).decode(),
            "schemaVersion": "v1",
        }
        signal = parse_raw(json.dumps(message | ({"metadata": metadata} if metadata else {})).encode())
        assert isinstance(signal, RawSignal)
        seq = seq_at(ms, node)
        made = raw_envelope(seq, at(ms), signal, sealed or self.keys.seal(payload, seq=seq), payload=payload)
        return replace(made, seq=seq)

    def status(
        self,
        ms: int,
        device_id: str,
        status: str,
        health: dict[str, Any] | None = None,
        *,
        seen: int | None = None,
        correlation_id: str | None = None,
    ) -> Envelope:
        """A device's status, seen at millisecond `seen` if given, otherwise `ms`."""
        seen_at = at(ms if seen is None else seen).isoformat()
        message: dict[str, Any] = {"deviceId": device_id, "status": status, "lastSeen": seen_at}
        said = parse_status(json.dumps(message | ({"health": health} if health else {})).encode())
        assert isinstance(said, DeviceStatus)
        return status_envelope(seq_at(ms), at(ms), said, correlation_id=correlation_id)

    def refused(
        self, ms: int, body: bytes, *devices: str, digest: str | None = None, stream: Stream = Stream.XRAY_RAW
    ) -> Envelope:
        """A refused message."""
        refusal = Refusal(Code.STALE_ERROR, "too old")
        seq = seq_at(ms)
        return refused_envelope(seq, at(ms), stream, refusal, self.keys.seal(body, seq=seq), devices=devices, digest=digest)


class Door(Sealing):
    """A sealer for a lake, which gets its own key ring."""

    def __init__(self, spark_lake: SparkLake, ring: Path) -> None:
        ring.write_text(new_key_line())
        spark_lake.settings = spark_lake.settings.model_copy(update={"signals_keys_file": str(ring)})
        super().__init__(DayKeys.of(spark_lake.settings))
