"""The decisions of a simulated vehicle and their timing, drawn from seed and VIN alone, so that runs are reproducible. Pure."""

import math
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from manifold.contracts.names import Owner

_HEARTBEAT_JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Parameters of a fleet's behaviour. Shares are probabilities from 0 to 1.

    Without `stay_s`, vehicles stay until `go_offline` or `crash`. By default none crashes.
    """

    heartbeat_s: float = 60.0  # ±10 %
    think_s: tuple[float, float] = (0.0, 0.05)  # minimum and maximum delay of an acknowledgement
    stay_s: float | None = None  # mean time online before the vehicle leaves on its own
    away_s: float = 30.0  # mean time away
    crash_share: float = 0.0  # departures without a DISCONNECT
    crash_before_ack_share: float = 0.0  # messages on which the vehicle crashes before it acknowledges
    clean_share: float = 0.0  # reconnects with a clean start
    v5_share: float = 0.5  # vehicles on MQTT 5; the others use 3.1.1
    session_expiry_s: int = 3600  # MQTT 5 only; with 3.1.1 the broker decides
    keepalive_s: int = 60
    compacted_queues: bool = False  # also subscribe to the compacted queues


DRIVING = Behaviour(
    stay_s=45.0, away_s=10.0, crash_share=0.3, crash_before_ack_share=0.01, clean_share=0.2, think_s=(0.01, 0.5)
)  # busy roads: the behaviour simulated by the command line


class BehaviourModel:
    """The decisions of one vehicle. Each kind has its own random sequence, independent of the other kinds."""

    def __init__(self, seed: int, vin: Owner, behaviour: Behaviour) -> None:
        self._root = f"{seed}/{vin}"
        self._behaviour = behaviour
        self._drawn: Counter[str] = Counter()
        self.protocol = 5 if self._draw("protocol") < behaviour.v5_share else 4

    def heartbeat_s(self) -> float:
        """Return the seconds until the next heartbeat."""
        return self._behaviour.heartbeat_s * (1 + _HEARTBEAT_JITTER * (2 * self._draw("heartbeat") - 1))

    def think_s(self) -> float:
        """Return the seconds until the current message is acknowledged."""
        least, most = self._behaviour.think_s
        return least + (most - least) * self._draw("think")

    def stay_s(self) -> float | None:
        """Return the seconds until the vehicle leaves on its own; None: never."""
        return None if self._behaviour.stay_s is None else self._about(self._behaviour.stay_s, "stay")

    def away_s(self) -> float:
        """Return the seconds until it reconnects."""
        return self._about(self._behaviour.away_s, "away")

    def crashes(self) -> bool:
        """Whether it leaves without a DISCONNECT this time."""
        return self._draw("crash") < self._behaviour.crash_share

    def crashes_before_ack(self) -> bool:
        """Whether it crashes before it acknowledges the current message."""
        return self._draw("crash before ack") < self._behaviour.crash_before_ack_share

    def forgets(self) -> bool:
        """Whether it reconnects with a clean start."""
        return self._draw("clean") < self._behaviour.clean_share

    def retry_s(self, attempt: int) -> float:
        """Return the seconds until the next attempt, after `attempt` failed connections."""
        return float(min(0.2 * 2**attempt, 10.0)) * (0.5 + self._draw("retry"))

    def _about(self, mean_s: float, kind: str) -> float:
        return -mean_s * math.log(1 - self._draw(kind))

    def _draw(self, kind: str) -> float:
        """Return a number in [0, 1), hashed from kind and count: needs no generator state per vehicle."""
        self._drawn[kind] += 1
        digest = blake2b(f"{self._root}/{kind}/{self._drawn[kind]}".encode(), digest_size=7)
        return (int.from_bytes(digest.digest()) >> 3) / (1 << 53)
