"""States and outcomes of entries, and the outcome record."""

from codecs import BOM_UTF8
from enum import StrEnum

import msgspec
from msgspec import Struct

from manifold.contracts.messages import LATEST_MS, shown
from manifold.contracts.names import is_vin
from manifold.contracts.seq import MAX_SEQ

MAX_ATTEMPTS = (1 << 31) - 1  # the largest number that the column `attempts` holds
SHOWN = 200  # characters of a parser's error in the message about an invalid record
_ENCODE = msgspec.json.Encoder().encode


class EntryState(StrEnum):
    """The state of an entry that has not ended."""

    PENDING = "pending"  # queued, not acknowledged
    PARKED = "parked"  # pending, but its data has not arrived
    IN_FLIGHT = "in flight"  # published, not acknowledged


class Outcome(StrEnum):
    """How an entry ended."""

    DELIVERED = "delivered"  # the vehicle acknowledged it
    SUPERSEDED = "superseded"  # replaced by a newer entry with the same compaction key
    EXPIRED = "expired"  # its retention passed while it was pending
    CANCELLED = "cancelled"  # by an operator
    FAILED = "failed"  # out of attempts, or larger than the broker's maximum packet size
    WITHDRAWN = "withdrawn"  # its campaign was stopped, or its time window ended; a late acknowledgement is recorded, too


# The number of an outcome in Redis and the Lua verbs. It is stored in the queues: never change it.
CODES = {
    Outcome.DELIVERED: 1,
    Outcome.SUPERSEDED: 2,
    Outcome.EXPIRED: 3,
    Outcome.CANCELLED: 4,
    Outcome.FAILED: 5,
    Outcome.WITHDRAWN: 6,
}
OF_CODE = {code: outcome for outcome, code in CODES.items()}


class OutcomeRecord(Struct, frozen=True, omit_defaults=True):
    """The outcome of one entry, keyed by (vin, seq). The first record counts, except that `delivered` replaces `withdrawn`."""

    vin: str
    seq: int
    outcome: Outcome
    ended_ms: int  # Unix milliseconds; for `delivered`, when the acknowledgement arrived
    dispatched_ms: int | None = None  # last publish; None: never, or unknown
    attempts: int | None = None  # number of publishes; None: unknown
    reason: str | None = None  # reason string of the vehicle's PUBACK, or why the platform ended the entry

    def to_wire(self) -> bytes:
        """Return the JSON for the outcomes stream and the archive."""
        return _ENCODE(self)

    def to_wire_prefix(self) -> bytes:
        """Return the JSON without `dispatched_ms`, `attempts` and the closing brace; the queues append all three."""
        fields = {"vin": self.vin, "seq": self.seq, "outcome": self.outcome, "ended_ms": self.ended_ms}
        if self.reason is not None:
            fields["reason"] = self.reason
        return _ENCODE(fields).removesuffix(b"}")

    def or_earlier(self, earlier: "OutcomeRecord | None") -> "OutcomeRecord":
        """Return which of two records of an entry counts: this one, or `earlier`, which was recorded before it.

        `earlier` is None if this is the first record of the entry.
        """
        if earlier is None:
            return self
        is_late_delivery = earlier.outcome is Outcome.WITHDRAWN and self.outcome is Outcome.DELIVERED
        return self if is_late_delivery else earlier

    @classmethod
    def from_wire(cls, payload: bytes) -> "OutcomeRecord":
        """Parse the record in `payload`.

        Raises:
            ValueError: `payload` is not such a record; the message names the problem.
        """
        try:
            fields = msgspec.json.decode(payload.removeprefix(BOM_UTF8))
            optional = {name: fields.get(name) for name in ("dispatched_ms", "attempts", "reason")}
            record = cls(fields["vin"], fields["seq"], Outcome(fields["outcome"]), fields["ended_ms"], **optional)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise ValueError(f"not an outcome record: {exc!r:.{SHOWN}}") from exc
        if problem := _problem_of(record):
            raise ValueError(f"not an outcome record: {problem}")
        return record


def _problem_of(record: OutcomeRecord) -> str | None:
    """Return what is wrong with the first field whose value does not fit its column; None if all fields fit."""
    if not isinstance(record.vin, str) or not is_vin(record.vin):
        return f"vin {shown(record.vin)} cannot be one"
    for name, maximum, is_optional in (
        ("seq", MAX_SEQ, False),
        ("ended_ms", LATEST_MS, False),
        ("dispatched_ms", LATEST_MS, True),
        ("attempts", MAX_ATTEMPTS, True),
    ):
        value = getattr(record, name)
        if value is None and is_optional:
            continue
        if type(value) is not int or not 0 <= value <= maximum:
            return f"{name} {shown(value)} must be a whole number from 0 to {maximum}"
    reason: object = record.reason  # of any type: nothing has checked it
    if reason is not None and not isinstance(reason, str):
        return f"reason {shown(reason)} must be a string"
    return None
