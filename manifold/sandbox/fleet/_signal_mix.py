"""The messages of a gateway fleet: valid signals, and signals with every kind of fault, generated from a seed. Pure.

The caller passes the time at which a message is signed, so a seed gives the same mix at any time. Nonces depend on that time too:
otherwise the AMQP door would refuse the messages of a second run, whose nonces it would already know.
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
STALE = timedelta(hours=2)  # age of a late message; no queue keeps a message for so long
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


CODES: Mapping[Kind, Code] = {  # error code of each kind that the AMQP door refuses
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
KEYED_SHARE = 0.3  # of the valid signals that have an x-idempotency-key
MIX: Mapping[Kind, float] = {  # share of each kind in all messages; the rest of the messages is valid
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
    """One message of a gateway."""

    kind: Kind
    device_id: str
    body: bytes
    headers: Mapping[str, str]
    row: tuple[str, datetime, str] | None = None  # key of its row in the lake: device, instant, payload digest; None: no row
    content_encoding: str | None = None

    @property
    def correlation_id(self) -> str:
        """The correlation id, for lookups. A resent message has the correlation id of the original."""
        return self.headers["x-correlation-id"]

    @property
    def code(self) -> Code | None:
        """The error code with which the AMQP door refuses the message; None: the door accepts it."""
        return CODES.get(self.kind)


class SignalMix:
    """Generates the messages of a fleet. The same seed, secret and times give the same bytes.

    A payload has at least `payload_bytes`. Device ids begin with `prefix`; if it is empty, with `gateway-` and the seed.
    """

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
        self._rng = random.Random(seed)
        self._secret = secret
        self._shares = shares
        self._min_payload_bytes = payload_bytes
        device_prefix = prefix or f"gateway-{seed}"
        self.devices = [f"{device_prefix}-{number:03}" for number in range(devices)]
        self._earlier: deque[SignalMessage] = deque(maxlen=MAX_REMEMBERED)  # valid messages that others may refer to
        self._count = 0  # messages generated

    def messages(self, count: int, at: datetime) -> Iterator[SignalMessage]:
        """Yield `count` messages that are signed at `at` (UTC). A message comes after the message that it refers to."""
        for _ in range(count):
            yield self.message(self._draw_kind(), at)

    def message(self, kind: Kind, at: datetime) -> SignalMessage:
        """Return the next message of this kind, signed at `at` (UTC).

        If the kind needs an earlier message, and there is none, returns a valid message.
        """
        self._count += 1
        if kind in REFERRING:
            candidates = list(self._earlier)
            if kind is Kind.CONFLICTING:  # it needs an idempotency key that it can reuse
                candidates = [earlier for earlier in candidates if KEY in earlier.headers]
            if candidates:
                return self._referring_message(kind, self._rng.choice(candidates), at)
        device = self._rng.choice(self.devices)
        if kind is Kind.GOOD or kind in REFERRING:
            return self._valid_message(device, at)
        return self._invalid_message(kind, device, at)

    def _valid_message(self, device: str, at: datetime) -> SignalMessage:
        """Return a new valid signal, in some messages with an idempotency key, and remember it for messages that refer to it."""
        body, row = self._body(device, at)
        headers = self._headers(device, body, at)
        if self._rng.random() < KEYED_SHARE:
            _, captured_at, _ = row
            headers[KEY] = f"{device}.{captured_at.timestamp():.6f}"
        message = SignalMessage(Kind.GOOD, device, body, headers, row)
        self._earlier.append(message)
        return message

    def _referring_message(self, kind: Kind, earlier: SignalMessage, at: datetime) -> SignalMessage:
        """Return a message that repeats `earlier`, or reuses its nonce or its idempotency key."""
        device = earlier.device_id
        earlier_key = {KEY: earlier.headers[KEY]} if KEY in earlier.headers else {}
        if kind is Kind.RESENT:
            return SignalMessage(kind, device, earlier.body, earlier.headers, earlier.row)
        if kind is Kind.REPEATED:
            headers = self._headers(device, earlier.body, at) | earlier_key
            return SignalMessage(kind, device, earlier.body, headers, earlier.row)
        body, _ = self._body(device, at)
        if kind is Kind.REPLAYED:
            return SignalMessage(kind, device, body, self._headers(device, body, at, nonce=earlier.headers["x-nonce"]))
        # Kind.CONFLICTING: another signal under the earlier idempotency key.
        return SignalMessage(kind, device, body, self._headers(device, body, at) | earlier_key)

    def _invalid_message(self, kind: Kind, device: str, at: datetime) -> SignalMessage:
        """Return a message that the AMQP door must refuse for the reason that `kind` names."""
        body, _ = self._body(device, at)
        match kind:
            case Kind.FORGED:
                wrong_secret = f"not {self._secret}"
                return SignalMessage(kind, device, body, self._headers(device, body, at, secret=wrong_secret))
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
        # A damaged body is signed as it is, so that nothing but the body is wrong.
        return SignalMessage(kind, device, body, self._headers(device, body, at))

    def _body(self, device: str, at: datetime) -> tuple[bytes, tuple[str, datetime, str]]:
        """Return a raw signal, whose timestamp is unique in the fleet, and the key of its row in the lake."""
        captured_at = _timestamp(at + timedelta(microseconds=self._count))
        payload = self._payload()
        signal = {
            "deviceId": device,
            "capturedAt": captured_at,
            "payload": base64.b64encode(payload).decode(),
            "schemaVersion": "v1",
            "metadata": {"battery": self._rng.randrange(5, 100), "signalStrength": -self._rng.randrange(40, 110)},
        }
        row = device, instant(captured_at), content_digest(payload)
        return json.dumps(signal).encode(), row

    def _payload(self) -> bytes:
        """Return random bytes, a track, or readings, of which some are out of bounds; padded with spaces to the minimum size."""
        drawn = self._rng.random()
        if drawn < 0.1:
            payload = self._rng.randbytes(200)
        elif drawn < 0.4:
            payload = self._track()
        else:
            payload = self._readings()
        return payload.ljust(self._min_payload_bytes)

    def _readings(self) -> bytes:
        """Return a reading of each type. Temperatures above 85 and pressures above 1100 are out of the default bounds."""
        ranges = {"temperature": ("celsius", -30, 95), "humidity": ("percent", 0, 100), "pressure": ("hpa", 950, 1110)}
        readings = [
            {"type": name, "value": round(self._rng.uniform(minimum, maximum), 1), "unit": unit}
            for name, (unit, minimum, maximum) in ranges.items()
        ]
        return json.dumps({"readings": readings}).encode()

    def _track(self) -> bytes:
        """Return a track of eight seconds: for each second latitude, longitude and a speed."""
        start_latitude, start_longitude = self._rng.uniform(45, 55), self._rng.uniform(5, 15)
        points: list[list[object]] = []
        for second in range(8):
            latitude = round(start_latitude + second / 5000, 5)
            longitude = round(start_longitude + math.sin(second) / 5000, 5)
            points.append([second, [latitude, longitude, self._rng.randrange(130)]])
        return json.dumps({"data": points, "time": "2026-01-01T00:00:00Z"}).encode()

    def _headers(self, device: str, body: bytes, at: datetime, *, secret: str = "", nonce: str = "") -> dict[str, str]:
        """Return the headers of a message that is signed at `at`, by default with the fleet's secret and a new nonce."""
        timestamp = _timestamp(at)
        digest = blake2b(f"{self._count} {timestamp} ".encode() + body, digest_size=32).digest()
        new_nonce = digest[:16].hex()
        correlation_id = UUID(bytes=digest[16:], version=4)
        headers = signed_headers(body, secret or self._secret, device_id=device, nonce=nonce or new_nonce, timestamp=timestamp)
        return headers | {"x-correlation-id": str(correlation_id), "x-timestamp": timestamp}

    def _draw_kind(self) -> Kind:
        """Return a random kind, according to the shares."""
        drawn = self._rng.random()
        for kind, share in self._shares.items():
            if drawn < share:
                return kind
            drawn -= share
        return Kind.GOOD


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@cache
def _bomb() -> bytes:
    """Return a gzip of some kilobytes that inflates far beyond the size limit."""
    return gzip.compress(b" " * BOMB_BYTES, mtime=0)
