"""Finds where a message names a vehicle, and removes it from the message. Pure.

A name is searched for as a word: `V1` is not found in `V10`, and an ISO 3779 VIN is found only where no letter or digit adjoins
it.

A payload is opaque if it may be any bytes: the content of data, of messages of compacted queues, and of signals. In such bytes, a
short name would be found by chance, so they are searched only for names of at least `MIN_LENGTH_IN_OPAQUE` characters. Payloads
of signals are also sealed, that is encrypted; those of refused messages are opened and searched.
"""

import json
import re
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
from manifold.contracts.topics import CAMPAIGN, RELEASE, TRIGGER_TOPICS
from pipelines.erasure.campaigns import order_without_vehicle
from pipelines.erasure.sealed import SEALED_STREAMS, Opener, open_nothing

MIN_LENGTH_IN_OPAQUE = 8
OF_QUEUES = ("last_seq", "acked_seq", "epoch")  # columns of compacted queues that have seqs
_ISO = re.compile(r"[0-9A-Z]{17}")
_FIXED_TOPICS = (*TRIGGER_TOPICS, RELEASE, CAMPAIGN)  # of triggers and of orders to campaigns; a short name may be part of them
_TRIGGER_FIELDS = ("ids", "request_id", "data_id", "data")

Row = dict[str, Any]


class ErasedVehicle:
    """A vehicle that is erased from messages that were accepted before a seq. Later messages may name the vehicle.

    `opener` opens (decrypts) the payloads of refused messages of signals, which are sealed.
    """

    def __init__(self, vin: str, before_seq: int, opener: Opener = open_nothing) -> None:
        self.vin = vin
        self.before_seq = before_seq
        self._before_instant = datetime_of(before_seq)
        self._opener = opener
        # Whether payloads that may be any bytes (opaque) are searched for the name. A short name would be in them by chance.
        self.is_searched_in_opaque = len(vin) >= MIN_LENGTH_IN_OPAQUE
        adjoining = "0-9A-Za-z" if _ISO.fullmatch(vin) else r"0-9A-Za-z_.\-"  # characters that may not adjoin the name
        pattern = f"(?:^|[^{adjoining}]){re.escape(vin)}(?:[^{adjoining}]|$)"
        self._word = re.compile(pattern.encode())

    def is_named_in(self, text: str | bytes) -> bool:
        """Whether the text names the vehicle, as it is or in JSON escapes."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        if self._word.search(raw):
            return True
        return b"\\" in raw and bool(self._word.search(_unescaped(raw)))

    def is_named_in_sealed(self, seq: int, sealed: bytes) -> bool:
        """Whether the sealed payload of a refused signal message names the vehicle, once it is opened.

        False for a short name, which would be found there by chance.
        """
        return self.is_searched_in_opaque and self.is_named_in(self._opener(seq, sealed))

    def is_accepted_later(self, row: Row) -> bool:
        """Whether a row was accepted at `before_seq` or later, by its seqs or the first arrival of its data. Then it is kept."""
        seqs = [row.get(name) for name in ("seq", *OF_QUEUES)]
        if any(seq is not None and seq >= self.before_seq for seq in seqs):
            return True
        first_seen_at = row.get("first_seen_at")
        return first_seen_at is not None and bool(first_seen_at >= self._before_instant)

    def may_be_named_in(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Flag the values that may name the vehicle, by a quick test that misses none that `is_named_in` accepts.

        Values with the name are flagged and, because they may have JSON escapes, values with a backslash.
        """
        has_name = pc.fill_null(pc.match_substring(column, self.vin), False)
        has_backslash = pc.fill_null(pc.match_substring(column, "\\"), False)
        return pc.or_(has_name, has_backslash)

    def remove_from(self, stream: Stream, row: Row) -> Row | None:
        """Remove the vehicle from an archived message.

        Return the same object if the message does not change, a new row if it does, or None if the message must be removed.
        """
        refusal = row["refused_because"]
        if refusal is not None and row["seq"] < self.before_seq and self.is_named_in(refusal):
            return None
        if stream is Stream.OUTCOME:
            return self._outcome_without(row)
        if stream is Stream.ECQ and row["topic"].startswith(ACKNOWLEDGEMENTS):
            return self._acknowledgement_without(row)
        if row["seq"] >= self.before_seq:  # outcomes and acknowledgements are judged by the seq of their entry, above
            return row
        if stream in (Stream.TRIGGER, Stream.CAMPAIGN):
            if row["topic"] not in _FIXED_TOPICS and self.is_named_in(row["topic"]):
                return None  # nothing valid is lost, because ingest refuses any topic that is not fixed
            return self._trigger_without(row) if stream is Stream.TRIGGER else self._order_without(row)
        if stream is Stream.ANSWER:
            return self._answer_without(row)
        # The payloads of the other streams may be any bytes, in which a short name would be found by chance.
        names_vehicle = self.is_named_in(row["topic"]) or (self.is_searched_in_opaque and self.is_named_in(row["payload"]))
        if stream in SEALED_STREAMS and row["refused_because"] is not None:
            names_vehicle = names_vehicle or self.is_named_in_sealed(row["seq"], row["payload"])
        return None if names_vehicle else self._without_headers(row)

    def _outcome_without(self, row: Row) -> Row | None:
        """Remove an outcome of the vehicle's entry (return None) if the entry is older than `before_seq`.

        From the outcome of another vehicle's entry, remove a reason that names the vehicle.
        """
        try:
            record = OutcomeRecord.from_wire(row["payload"])
        except ValueError:
            return self._invalid_without(row)
        if record.vin == self.vin:
            return None if record.seq < self.before_seq else row
        if record.reason is not None and self.is_named_in(str(record.reason)):
            row = row | {"payload": replace(record, reason=None).to_wire()}
        return self._without_headers(row)

    def _acknowledgement_without(self, row: Row) -> Row | None:
        """Remove an acknowledgement by the vehicle (return None) if its message and epoch are both older than `before_seq`.

        From an acknowledgement by another vehicle, remove a reason that names the vehicle.
        """
        try:
            record = EcqAck.from_wire(row["payload"])
        except ValueError:
            return self._invalid_without(row)
        if self.is_named_in(record.client_id):
            is_old = record.seq < self.before_seq and record.epoch < self.before_seq  # an epoch is the seq of a rewind
            return None if is_old else row
        if record.reason is not None and self.is_named_in(record.reason):
            row = row | {"payload": replace(record, reason=None).to_wire()}
        return self._without_headers(row)

    def _invalid_without(self, row: Row) -> Row | None:
        """Remove a message that cannot be parsed (return None) if it is older than `before_seq` and names the vehicle."""
        if row["seq"] >= self.before_seq:
            return row
        names_vehicle = self.is_named_in(row["payload"]) or self.is_named_in(row["topic"])
        return None if names_vehicle else self._without_headers(row)

    def _trigger_without(self, row: Row) -> Row | None:
        """Remove the vehicle from the ids of a trigger. A trigger for no other vehicle is removed as a whole (None).

        A refused or invalid trigger that names the vehicle is removed, too. A request_id or data_id that names the vehicle stays,
        if the trigger is for other vehicles; the final search reports the message.
        """
        if not self.is_named_in(row["payload"]):
            return self._without_headers(row)
        if row["refused_because"] is not None:
            return None
        fields = _json_object(row["payload"])
        if fields is None or not isinstance(fields.get("ids"), list):
            return None
        ids = fields["ids"]
        other_ids = [vin for vin in ids if vin != self.vin]
        has_only_text = all(isinstance(vin, str) for vin in other_ids)
        if not other_ids or not has_only_text:  # no vehicle is left, or ingest refuses the trigger because of its ids
            return None
        reduced = fields | {"ids": other_ids}
        if self.is_named_in(json.dumps(reduced, ensure_ascii=False)):  # perhaps in a field that ingest does not read: drop those
            reduced = {name: reduced[name] for name in _TRIGGER_FIELDS if name in reduced}
        return self._without_headers(row | {"payload": json.dumps(reduced).encode()})

    def _order_without(self, row: Row) -> Row | None:
        """Remove the vehicle from an order to a campaign. An order that names the vehicle and is refused is removed (None)."""
        if not self.is_named_in(row["payload"]):
            return self._without_headers(row)
        if row["refused_because"] is not None:
            return None
        payload = order_without_vehicle(row["payload"], self.vin, self.is_named_in)
        return None if payload is None else self._without_headers(row | {"payload": payload})

    def _answer_without(self, row: Row) -> Row | None:
        """Remove an answer of the vehicle (return None). Another vehicle's answer that names it keeps only seq and status."""
        if self.is_named_in(row["topic"]):  # the topic has the name of the vehicle that answers
            return None
        if not self.is_named_in(row["payload"]):
            return self._without_headers(row)
        if row["refused_because"] is not None:
            return None
        fields = _json_object(row["payload"])
        if fields is None:
            return None
        payload = json.dumps({name: fields.get(name) for name in ("seq", "status")}).encode()
        return None if self.is_named_in(payload) else self._without_headers(row | {"payload": payload})

    def _without_headers(self, row: Row) -> Row:
        """Remove the headers that name the vehicle. Headers of the platform itself stay."""
        pairs: list[tuple[str, str | None]] = row["headers"] or []
        kept = [
            (name, value)
            for name, value in pairs
            if name.startswith(SERVICE_PREFIX) or not (self.is_named_in(name) or self.is_named_in(value or ""))
        ]
        return row if len(kept) == len(pairs) else row | {"headers": kept}


def _json_object(payload: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None if the payload is anything else."""
    try:
        value = json.loads(payload.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unescaped(raw: bytes) -> bytes:
    """JSON without escapes; empty if the bytes are not JSON."""
    try:
        return json.dumps(json.loads(raw), ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return b""
