"""Messages for the archive, at chosen milliseconds after noon."""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from manifold.contracts.ecq import EARLIEST, EcqAck
from manifold.contracts.envelope import DUPLICATE_OF, Envelope, Stream
from manifold.contracts.keys import OUTCOMES
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import seq_of
from manifold.contracts.topics import TRIGGER, data_topic, ecq_rewind_topic, ecq_write_topic

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def seq_at(ms: int, node: int = 0) -> int:
    """The seq issued `ms` milliseconds after noon."""
    return seq_of(NOON_MS + ms, node, 0)


def at(ms: int) -> datetime:
    return NOON + timedelta(milliseconds=ms)


def envelope(ms: int, stream: Stream, topic: str, payload: bytes, *, node: int = 0, **more: Any) -> Envelope:
    return Envelope(seq_at(ms, node), at(ms), stream, topic, payload, **more)


def trigger(ms: int, vins: Sequence[object], data_id: str = "d1", *, request_id: str | None = None, **more: Any) -> Envelope:
    fields = {"ids": list(vins), "request_id": request_id or f"task_a_{ms}", "data_id": data_id}
    return envelope(ms, Stream.TRIGGER, TRIGGER, json.dumps(fields).encode(), **more)


def inline(ms: int, vins: Sequence[str], data: bytes, **more: Any) -> Envelope:
    fields = {"ids": list(vins), "request_id": f"task_a_{ms}", "data": base64.b64encode(data).decode()}
    return envelope(ms, Stream.TRIGGER, TRIGGER, json.dumps(fields).encode(), **more)


def duplicate(ms: int, of_ms: int, vins: Sequence[str], data_id: str = "d1") -> Envelope:
    headers = {DUPLICATE_OF: str(seq_at(of_ms))}
    return trigger(ms, vins, data_id, request_id=f"task_a_{of_ms}", headers=headers)


def data(ms: int, data_id: str, payload: bytes, **more: Any) -> Envelope:
    return envelope(ms, Stream.DATA, data_topic(data_id), payload, **more)


def outcome(ms: int, vin: str, of_ms: int, how: Outcome = Outcome.DELIVERED) -> Envelope:
    record = OutcomeRecord(vin, seq_at(of_ms), how, NOON_MS + ms, dispatched_ms=NOON_MS + ms - 5, attempts=1)
    return envelope(ms, Stream.OUTCOME, f"outcomes/{vin}", record.to_wire())


def ecq_write(ms: int, client_id: str, key: str, payload: bytes = b"", *, node: int = 0, **more: Any) -> Envelope:
    return envelope(ms, Stream.ECQ, ecq_write_topic(client_id, key), payload, node=node, **more)


def ecq_rewind(ms: int, client_id: str, to: str | int = EARLIEST) -> Envelope:
    return envelope(ms, Stream.ECQ, ecq_rewind_topic(client_id), str(to).encode())


def ecq_ack(ms: int, client_id: str, of_ms: int, *, epoch_ms: int | None = None, acked_ms: int | None = None) -> Envelope:
    epoch = 0 if epoch_ms is None else seq_at(epoch_ms)
    record = EcqAck(client_id, seq_at(of_ms), NOON_MS + (ms if acked_ms is None else acked_ms), epoch)
    return _recorded(ms, record)


def ecq_expired(ms: int, client_id: str, of_ms: int) -> Envelope:
    record = EcqAck(client_id, seq_at(of_ms), NOON_MS + ms, passed_over=True, outcome=Outcome.EXPIRED)
    return _recorded(ms, record)


def _recorded(ms: int, record: EcqAck) -> Envelope:
    return envelope(ms, Stream.ECQ, f"{OUTCOMES}/{ecq_queue(record.client_id)}", record.to_wire())
