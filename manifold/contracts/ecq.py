"""Incoming messages for exclusive compacted queues: appends and rewinds. Parses any bytes into a message or a `Refused`."""

import re
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Struct

from manifold.contracts.keys import OUTCOMES
from manifold.contracts.messages import LATEST_MS, NAME_RULE, SHOWN, Refused, shown
from manifold.contracts.names import MAX_VIN, RESERVED_CLIENT_IDS, SERVICE_PREFIX, Owner, is_service, is_vin
from manifold.contracts.outcomes import Outcome
from manifold.contracts.queue_names import Flavour
from manifold.contracts.seq import MAX_SEQ, first_seq_at
from manifold.contracts.topics import ECQ_REWIND_PREFIX, ECQ_WRITE_PREFIX

MAX_KEY_BYTES = 512
MAX_KEY_LEVELS = 125  # EMQX limits topics to 128 levels; $ECQ/w/<client id>/ takes three
# Control characters and Unicode noncharacters, which MQTT forbids or discourages in topics that are published to.
# Mosquitto disconnects clients that use them.
_NONCHARACTERS = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_FORBIDDEN_IN_KEY = re.compile(f"[+#\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
ACKNOWLEDGEMENTS = f"{OUTCOMES}/{Flavour.ECQ}/"  # prefix of acknowledgement topics in the archive
EARLIEST = "earliest"
REWIND_RULE = f"send {EARLIEST}, a seq, or an ISO 8601 time with its zone, such as 2026-01-31T08:00:00Z"


@dataclass(frozen=True, slots=True)
class Append:
    """A message with a key; it supersedes older messages with the same key."""

    client_id: Owner
    key: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Rewind:
    """Redeliver the live messages whose seq is at least `first_seq`; 0: all."""

    client_id: Owner
    first_seq: int


class EcqAck(Struct, frozen=True, omit_defaults=True):
    """Record that a message of an exclusive compacted queue was acknowledged or skipped. Recording is idempotent.

    `epoch` is the seq of the last rewind that the queue had seen, or 0 if it had seen none. A later rewind makes the message
    pending again, so this acknowledgement then no longer counts.
    """

    client_id: str
    seq: int
    acked_ms: int  # Unix milliseconds
    epoch: int = 0
    reason: str | None = None  # reason string of the client's PUBACK, or why the platform skipped the message
    passed_over: bool = False  # not delivered: out of attempts, or larger than any packet the client accepts
    outcome: Outcome | None = None  # `expired`: skipped because its retention passed while it was pending

    @property
    def is_expired(self) -> bool:
        """Whether the message ended because its retention passed while it was pending."""
        return self.outcome is Outcome.EXPIRED

    def to_wire(self) -> bytes:
        """Return the JSON for the outcomes stream and the archive."""
        return _ENCODE(self)

    def to_wire_prefix(self) -> bytes:
        """Return the JSON without `epoch` and the closing brace; the queue knows its epoch and appends both."""
        without_epoch = msgspec.structs.replace(self, epoch=0)  # 0 is the default, which the JSON omits
        return _ENCODE(without_epoch).removesuffix(b"}")

    @classmethod
    def from_wire(cls, payload: bytes) -> "EcqAck":
        """Parse the record in `payload`.

        Raises:
            ValueError: `payload` is not such a record; the message names the problem.
        """
        try:
            record = _DECODE(payload)
        except (ValueError, RecursionError) as exc:
            raise ValueError(f"not an acknowledgement of a compacted queue: {exc!r:.{SHOWN}}") from exc
        if not is_vin(record.client_id) or not 0 <= record.seq <= MAX_SEQ or not 0 <= record.epoch <= MAX_SEQ:
            raise ValueError("not an acknowledgement of a compacted queue: client_id, seq or epoch cannot be one")
        if not 0 <= record.acked_ms <= LATEST_MS:
            problem = f"acked_ms {shown(record.acked_ms)} must be from 0 to {LATEST_MS}"
            raise ValueError(f"not an acknowledgement of a compacted queue: {problem}")
        return record


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(EcqAck).decode


def parse_ecq(topic: str, payload: bytes, *, max_data_bytes: int) -> Append | Rewind | Refused:
    """Parse a message on `$ECQ/w/<client id>/<key>` or `$ECQ/r/<client id>`."""
    if topic.startswith(ECQ_WRITE_PREFIX):
        return _parse_append(topic[len(ECQ_WRITE_PREFIX) :], payload, max_data_bytes)
    if topic.startswith(ECQ_REWIND_PREFIX):
        return _parse_rewind(topic[len(ECQ_REWIND_PREFIX) :], payload)
    return Refused(
        f"unknown topic {shown(topic)}; publish to {ECQ_WRITE_PREFIX}<client id>/<key> or {ECQ_REWIND_PREFIX}<client id>"
    )


def rewind_target(word: str) -> int | None:
    """Return the first seq to redeliver; None if `word` is invalid.

    `word` is `EARLIEST`, for which the result is 0; a seq; or a time, for which the result is the first seq at or after that
    time.
    """
    word = word.strip()
    if word == EARLIEST:
        return 0
    if word.isascii() and word.isdigit():
        is_short = len(word) <= len(str(MAX_SEQ))  # Python refuses to convert thousands of digits
        return int(word) if is_short and int(word) <= MAX_SEQ else None
    try:
        instant = datetime.fromisoformat(word.upper())  # RFC 3339 allows lower-case t and z
        return min(first_seq_at(instant), MAX_SEQ)  # a time after 2089 has no seq; nothing is redelivered
    except (ValueError, OverflowError):  # not a time, or a time without a zone
        return None


def _parse_append(client_id_and_key: str, payload: bytes, max_data_bytes: int) -> Append | Refused:
    """Parse a write of `payload` to the queue and the key that its topic names as `<client id>/<key>`."""
    client_id, _, key = client_id_and_key.partition("/")
    if (refused := refused_client(client_id)) is not None:
        return refused
    if not key:
        return Refused(f"topic names no key; publish to {ECQ_WRITE_PREFIX}{client_id}/<key>")
    if (refused := _refused_key(key)) is not None:
        return refused
    if len(payload) > max_data_bytes:
        return Refused(f"payload of {len(payload)} bytes is over max_data_bytes={max_data_bytes}; send less or raise the setting")
    return Append(Owner(client_id), key, payload)


def _parse_rewind(client_id: str, payload: bytes) -> Rewind | Refused:
    if (refused := refused_client(client_id)) is not None:
        return refused
    is_too_long = len(payload) > SHOWN  # no position has so many characters
    beginning = payload[: SHOWN + 1].decode("utf-8", "replace")  # a byte too many, so that `shown` marks it as truncated
    first_seq = None if is_too_long else rewind_target(beginning)
    if first_seq is None:
        size = f", and not {len(payload)} bytes" if is_too_long else ""
        return Refused(f"{shown(beginning)} is not a position to rewind to; {REWIND_RULE}{size}")
    return Rewind(Owner(client_id), first_seq)


def _refused_key(key: str) -> Refused | None:
    """Return why this key cannot be written to; None if it can."""
    size = len(key.encode("utf-8", "surrogatepass"))
    levels = key.count("/") + 1
    if size > MAX_KEY_BYTES:
        return Refused(f"key {shown(key)} of {size} bytes is over {MAX_KEY_BYTES}; choose a shorter one")
    if levels > MAX_KEY_LEVELS:
        return Refused(f"key {shown(key)} of {levels} levels is over {MAX_KEY_LEVELS}; choose one with fewer")
    if _FORBIDDEN_IN_KEY.search(key):
        return Refused(
            f"key {shown(key)} contains +, #, a control character or a Unicode noncharacter; choose one that a topic may end in"
        )
    return None


def refused_client(client_id: str) -> Refused | None:
    """Return why this client id cannot have a queue; None if it can."""
    if not client_id:
        return Refused("topic names no client id; publish to $ECQ/w/<client id>/<key>")
    if client_id in RESERVED_CLIENT_IDS:
        return Refused(f"client id {shown(client_id)} is a level of the topics themselves; no client may have it")
    if is_service(client_id):
        return Refused(f"client id {shown(client_id)} is a service's: those that begin with {SERVICE_PREFIX} have no queue")
    if not is_vin(client_id):
        return Refused(f"client id {shown(client_id)} must be 1 to {MAX_VIN} {NAME_RULE}")
    return None
