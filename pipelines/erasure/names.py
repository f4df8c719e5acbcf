"""Finds where a message names a vehicle, and removes it from the message. Pure.

A name is searched for as a word: `V1` is not in `V10`, and an ISO 3779 VIN is found where no letter or digit adjoins it. In
opaque payloads a short name would be found by chance, so they are searched only for names of at least `OPAQUE_FROM`
characters.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from manifold.archive.parsing.ecq import ACKNOWLEDGEMENTS
from manifold.contracts.ecq import EcqAck
from manifold.contracts.envelope import Stream
from manifold.contracts.names import SERVICE_PREFIX
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.seq import datetime_of
from pipelines.erasure.campaigns import without_vehicle
from pipelines.erasure.sealed import STREAMS, Opened, closed

OPAQUE_FROM = 8
OF_QUEUES = ("last_seq", "acked_seq", "epoch")  # seq columns in rows of compacted queues
_ISO = re.compile(r"[0-9A-Z]{17}")
_KNOWN = ("ids", "request_id", "data_id", "data")  # fields of a trigger

Row = dict[str, Any]


class Named:
    """A vehicle's name in messages accepted before a seq; later messages may name it again.

    `opened` opens refused messages of signals, which are sealed.
    """

    def __init__(self, vin: str, before: int, opened: Opened = closed) -> None:
        self.vin, self.before, self._instant, self._opened = vin, before, datetime_of(before), opened
        self.opaque = len(vin) >= OPAQUE_FROM
        touching = "0-9A-Za-z" if _ISO.fullmatch(vin) else r"0-9A-Za-z_.\-"
        self._pattern = f"(?:^|[^{touching}]){re.escape(vin)}(?:[^{touching}]|$)"
        self._word = re.compile(self._pattern.encode())

    def is_in(self, text: str | bytes) -> bool:
        """Whether the text names the vehicle, also in JSON escapes."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        return bool(self._word.search(raw)) or (b"\\" in raw and bool(self._word.search(_unescaped(raw))))

    def is_in_sealed(self, seq: int, sealed: bytes) -> bool:
        """Whether a sealed refused message of signals names the vehicle; for a short name, only topics are searched."""
        return self.opaque and self.is_in(self._opened(seq, sealed))

    def is_newer(self, row: Row) -> bool:
        """Whether a row arrived at or after `before`, by its seqs or by the first arrival of its data; such rows are kept."""
        first = row.get("first_seen_at")
        seqs = (row.get(name) for name in ("seq", *OF_QUEUES))
        return any(seq is not None and seq >= self.before for seq in seqs) or (first is not None and first >= self._instant)

    def may_be_in(self, column: pa.Array | pa.ChunkedArray, *, escaped: bool = False) -> pa.Array | pa.ChunkedArray:
        """Flag the values that may name the vehicle, by a quick test. With `escaped`, every value with a backslash may."""
        found = pc.fill_null(pc.match_substring(column, self.vin), False)
        return pc.or_(found, pc.fill_null(pc.match_substring(column, "\\"), False)) if escaped else found

    def without(self, stream: Stream, row: Row) -> Row | None:
        """An archived message without the vehicle: unchanged, changed, or None if nothing of it is left."""
        if stream is Stream.OUTCOME:
            return self._outcome(row)
        if stream is Stream.ECQ and row["topic"].startswith(ACKNOWLEDGEMENTS):
            return self._acknowledgement(row)
        if row["seq"] >= self.before:
            return row
        if stream is Stream.TRIGGER:
            return self._trigger(row)
        if stream is Stream.CAMPAIGN:
            return self._order(row)
        if stream is Stream.ANSWER:
            return self._answer(row)
        named = self.is_in(row["topic"]) or (self.opaque and self.is_in(row["payload"]))
        if stream in STREAMS and row["refused_because"] is not None:
            named = named or self.is_in_sealed(row["seq"], row["payload"])
        return None if named else self._without_headers(row)

    def _outcome(self, row: Row) -> Row | None:
        try:
            record = OutcomeRecord.from_wire(row["payload"])
        except ValueError:
            return None if row["seq"] < self.before and (self.is_in(row["payload"]) or self.is_in(row["topic"])) else row
        if record.vin == self.vin:
            return None if record.seq < self.before else row
        if record.reason is not None and self.is_in(str(record.reason)):
            row = row | {"payload": replace(record, reason=None).to_wire()}
        return self._without_headers(row)

    def _acknowledgement(self, row: Row) -> Row | None:
        try:
            record = EcqAck.from_wire(row["payload"])
        except ValueError:
            return None if row["seq"] < self.before and (self.is_in(row["payload"]) or self.is_in(row["topic"])) else row
        if self.is_in(record.client_id):
            return None if record.seq < self.before and record.epoch < self.before else row
        if record.reason is not None and self.is_in(record.reason):
            row = row | {"payload": replace(record, reason=None).to_wire()}
        return self._without_headers(row)

    def _trigger(self, row: Row) -> Row | None:
        if not self.is_in(row["payload"]):
            return self._without_headers(row)
        fields = _object(row["payload"])
        ids = fields.get("ids") if fields else None
        if row["refused_because"] is not None or fields is None or not isinstance(ids, list):
            return None
        others = [vin for vin in ids if vin != self.vin]
        if not others or not all(isinstance(vin, str) for vin in others):  # nothing is left, or it was refused for its ids
            return None
        left = fields | {"ids": others}
        if self.is_in(json.dumps(left, ensure_ascii=False)):  # perhaps in an unknown field
            left = {name: left[name] for name in _KNOWN if name in left}
        return self._without_headers(row | {"payload": json.dumps(left).encode()})

    def _order(self, row: Row) -> Row | None:
        if not self.is_in(row["payload"]):
            return self._without_headers(row)
        left = None if row["refused_because"] is not None else without_vehicle(row["payload"], self.vin, self.is_in)
        return None if left is None else self._without_headers(row | {"payload": left})

    def _answer(self, row: Row) -> Row | None:
        if self.is_in(row["topic"]):
            return None
        if not self.is_in(row["payload"]):
            return self._without_headers(row)
        fields = None if row["refused_because"] is not None else _object(row["payload"])
        left = None if fields is None else json.dumps({name: fields.get(name) for name in ("seq", "status")}).encode()
        return None if left is None or self.is_in(left) else self._without_headers(row | {"payload": left})

    def _without_headers(self, row: Row) -> Row:
        headers: Mapping[str, str] = dict(row["headers"] or ())
        kept = {
            name: value
            for name, value in headers.items()
            if name.startswith(SERVICE_PREFIX) or not (self.is_in(name) or self.is_in(value))
        }
        return row if len(kept) == len(headers) else row | {"headers": list(kept.items())}


def _object(payload: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(payload.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unescaped(raw: bytes) -> bytes:
    try:
        return json.dumps(json.loads(raw), ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return b""
