"""The messages of a gateway fleet: valid signals, and every kind of invalid one, drawn from a seed. Pure.

A message is signed with a given timestamp, so that a seed gives the same mix at any time. Nonces depend on the timestamp too,
because the door would refuse those of an earlier run.
"""

import base64
import gzip
import json
import math
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from uuid import UUID

from manifold.contracts.signals.codes import Code
from manifold.contracts.signals.messages import content_digest, instant
from manifold.contracts.signals.signing import signed_headers

KEY = "x-idempotency-key"
STALE = timedelta(hours=2)  # older than any queue keeps a message
BOMB_BYTES = 8 << 20  # inflated size of a small gzip body


class Kind(StrEnum):
    """The kinds of messages."""

    GOOD = "good"  # a new valid signal
    RESENT = "sent again"  # identical bytes and headers, as after a lost confirm
    REPEATED = "repeated"  # the same signal with a new signature
    FORGED = "forged"  # signed with another secret
    LATE = "late"  # signed hours ago
    REPLAYED = "replayed"  # another signal with an earlier nonce
    CONFLICTING = "conflicting"  # another signal with an earlier idempotency key
    NO_JSON = "no JSON"
    WRONG_FIELD = "wrong field"
    WRONG_VERSION = "wrong version"
    TOO_LARGE = "too large"


CODES: Mapping[Kind, Code] = {  # of the refused kinds
    Kind.FORGED: Code.SIGNATURE_ERROR,
    Kind.LATE: Code.STALE_ERROR,
    Kind.REPLAYED: Code.REPLAY_ERROR,
    Kind.CONFLICTING: Code.IDEMPOTENCY_CONFLICT,
    Kind.NO_JSON: Code.MALFORMED_JSON,
    Kind.WRONG_FIELD: Code.SCHEMA_ERROR,
    Kind.WRONG_VERSION: Code.VERSION_ERROR,
    Kind.TOO_LARGE: Code.SIZE_ERROR,
}
DUPLICATES = frozenset({Kind.RESENT, Kind.REPEATED})
REFERRING = DUPLICATES | {Kind.REPLAYED, Kind.CONFLICTING}  # kinds that need an earlier message
MAX_REMEMBERED = 1000  # recent valid messages that others may refer to
KEYED = 0.3  # share of valid signals with their own x-idempotency-key
MIX: Mapping[Kind, float] = {  # shares of all messages; the rest is valid
    Kind.RESENT: 0.05,
    Kind.REPEATED: 0.05,
    Kind.FORGED: 0.04,
    Kind.LATE: 0.02,
    Kind.REPLAYED: 0.02,
    Kind.CONFLICTING: 0.02,
    Kind.NO_JSON: 0.02,
    Kind.WRONG_FIELD: 0.02,
    Kind.WRONG_VERSION: 0.01,
    Kind.TOO_LARGE: 0.01,
}
ONLY_GOOD: Mapping[Kind, float] = {}


@dataclass(frozen=True, slots=True)
class SignalMessage:
    """One message of a gateway. `row` is the key of its lake row: device, instant and digest of the payload."""

    kind: Kind
    device_id: str
    body: bytes
    headers: Mapping[str, str]
    row: tuple[str, datetime, str] | None = None  # None: it produces no row
    content_encoding: str | None = None

    @property
    def correlation_id(self) -> str:
        """The correlation id for lookups; a resent message has that of the original."""
        return self.headers["x-correlation-id"]

    @property
    def code(self) -> Code | None:
        """The code with which the door refuses it; None: it is accepted."""
        return CODES.get(self.kind)


class SignalMix:
    """Generates the messages of a fleet. The same seed, secret and timestamps give the same bytes."""

    def __init__(
        self,
        seed: int,
        devices: int,
        secret: str,
        *,
        shares: Mapping[Kind, float] = MIX,
        payload_bytes: int = 0,
        prefix: str = "",
    ) -> None:
        self._chance, self._secret, self._shares, self._bytes = random.Random(seed), secret, shares, payload_bytes
        self.devices = [f"{prefix or f'gateway-{seed}'}-{number:03}" for number in range(devices)]
        self._before: deque[SignalMessage] = deque(maxlen=MAX_REMEMBERED)  # valid messages that others may refer to
        self._made = 0

    def messages(self, count: int, at: datetime) -> Iterator[SignalMessage]:
        """Yield `count` messages made at `at` (UTC). A message always follows the one that it refers to."""
        for _ in range(count):
            yield self.message(self._kind(), at)

    def message(self, kind: Kind, at: datetime) -> SignalMessage:
        """Return the next message of this kind; a valid one if there is no message yet to refer to."""
        self._made += 1
        if kind in REFERRING:
            known = [one for one in self._before if kind is not Kind.CONFLICTING or KEY in one.headers]
            if known:
                return self._referring(kind, self._chance.choice(known), at)
        device = self._chance.choice(self.devices)
        if kind not in REFERRING and kind is not Kind.GOOD:
            return self._bad(kind, device, at)
        body, row = self._body(device, at)
        key = {KEY: f"{device}.{row[1].timestamp():.6f}"} if self._chance.random() < KEYED else {}
        self._before.append(SignalMessage(Kind.GOOD, device, body, self._headers(device, body, at) | key, row))
        return self._before[-1]

    def _referring(self, kind: Kind, before: SignalMessage, at: datetime) -> SignalMessage:
        device, key = before.device_id, {KEY: before.headers[KEY]} if KEY in before.headers else {}
        if kind is Kind.RESENT:
            return SignalMessage(kind, device, before.body, before.headers, before.row)
        if kind is Kind.REPEATED:
            return SignalMessage(kind, device, before.body, self._headers(device, before.body, at) | key, before.row)
        body, _ = self._body(device, at)
        if kind is Kind.REPLAYED:
            return SignalMessage(kind, device, body, self._headers(device, body, at, nonce=before.headers["x-nonce"]))
        return SignalMessage(kind, device, body, self._headers(device, body, at) | key)

    def _bad(self, kind: Kind, device: str, at: datetime) -> SignalMessage:
        """Build a signal that the door must refuse for the reason that `kind` names."""
        body, _ = self._body(device, at)
        match kind:
            case Kind.FORGED:
                return SignalMessage(kind, device, body, self._headers(device, body, at, secret=f"not {self._secret}"))
            case Kind.LATE:
                return SignalMessage(kind, device, body, self._headers(device, body, at - STALE))
            case Kind.NO_JSON:
                body = body[: len(body) // 2]
            case Kind.WRONG_FIELD:
                body = body.replace(b'"capturedAt"', b'"capturedWhen"')
            case Kind.WRONG_VERSION:
                body = body.replace(b'"schemaVersion": "v1"', b'"schemaVersion": "v9"')
            case Kind.TOO_LARGE:
                bomb = _bomb()
                return SignalMessage(kind, device, bomb, self._headers(device, bomb, at), content_encoding="gzip")
        return SignalMessage(kind, device, body, self._headers(device, body, at))

    def _body(self, device: str, at: datetime) -> tuple[bytes, tuple[str, datetime, str]]:
        """Return a raw signal with a timestamp unique in the fleet, and the key of its lake row."""
        captured = _text(at + timedelta(microseconds=self._made))
        payload = self._payload()
        said = {
            "deviceId": device,
            "capturedAt": captured,
            "payload": base64.b64encode(payload).decode(),
            "schemaVersion": "v1",
            "metadata": {"battery": self._chance.randrange(5, 100), "signalStrength": -self._chance.randrange(40, 110)},
        }
        return json.dumps(said).encode(), (device, instant(captured), content_digest(payload))

    def _payload(self) -> bytes:
        """Return readings, some out of bounds; a track; or random bytes."""
        form = self._chance.random()
        if form < 0.1:
            payload = self._chance.randbytes(200)
        elif form < 0.4:
            payload = self._track()
        else:
            values = {"temperature": ("celsius", -30, 95), "humidity": ("percent", 0, 100), "pressure": ("hpa", 950, 1110)}
            said = [
                {"type": kind, "value": round(self._chance.uniform(least, most), 1), "unit": unit}
                for kind, (unit, least, most) in values.items()
            ]
            payload = json.dumps({"readings": said}).encode()
        return payload + b" " * (self._bytes - len(payload))

    def _track(self) -> bytes:
        latitude, longitude = self._chance.uniform(45, 55), self._chance.uniform(5, 15)
        points = [
            [
                second,
                [round(latitude + second / 5000, 5), round(longitude + math.sin(second) / 5000, 5), self._chance.randrange(130)],
            ]
            for second in range(8)
        ]
        return json.dumps({"data": points, "time": "2026-01-01T00:00:00Z"}).encode()

    def _headers(self, device: str, body: bytes, at: datetime, *, secret: str = "", nonce: str = "") -> dict[str, str]:
        own = blake2b(f"{self._made} {_text(at)} ".encode() + body, digest_size=32).digest()
        signed = signed_headers(
            body, secret or self._secret, device_id=device, nonce=nonce or own[:16].hex(), timestamp=_text(at)
        )
        return signed | {"x-correlation-id": str(UUID(bytes=own[16:], version=4)), "x-timestamp": _text(at)}

    def _kind(self) -> Kind:
        drawn = self._chance.random()
        for kind, share in self._shares.items():
            if drawn < share:
                return kind
            drawn -= share
        return Kind.GOOD


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@cache
def _bomb() -> bytes:
    """Return a gzip of some kilobytes that inflates far beyond the size limit."""
    return gzip.compress(b" " * BOMB_BYTES, mtime=0)
