"""The decisions of a simulated vehicle, with their times. They depend on seed and VIN alone, so runs are reproducible. Pure."""

import math
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from manifold.contracts.names import Owner

_HEARTBEAT_JITTER = 0.1  # maximum deviation of a heartbeat's interval, as a share of it


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Parameters of a fleet's behaviour. Shares are probabilities from 0 to 1.

    By default a vehicle stays online until `Fleet.go_offline` or `Fleet.crash` is called.
    """

    heartbeat_s: float = 60.0  # ±10 %
    think_s: tuple[float, float] = (0.0, 0.05)  # minimum and maximum delay of an acknowledgement
    stay_s: float | None = None  # mean time online before the vehicle leaves on its own; None: it does not leave
    away_s: float = 30.0  # mean time offline after that
    crash_share: float = 0.0  # share of departures without a DISCONNECT
    crash_before_ack_share: float = 0.0  # share of messages after which the vehicle crashes before it acknowledges them
    clean_share: float = 0.0  # share of reconnects with a clean start
    v5_share: float = 0.5  # share of vehicles on MQTT 5; the others use MQTT 3.1.1
    session_expiry_s: int = 3600  # on MQTT 5; on MQTT 3.1.1 the broker decides
    keepalive_s: int = 60
    compacted_queues: bool = False  # also subscribe to the compacted queues


DRIVING = Behaviour(
    stay_s=45.0, away_s=10.0, crash_share=0.3, crash_before_ack_share=0.01, clean_share=0.2, think_s=(0.01, 0.5)
)  # busy roads: the behaviour simulated by the command line


class BehaviourModel:
    """The decisions of one vehicle. Each kind of decision has a random sequence of its own."""

    def __init__(self, seed: int, vin: Owner, behaviour: Behaviour) -> None:
        self._root = f"{seed}/{vin}"
        self._behaviour = behaviour
        self._drawn: Counter[str] = Counter()
        self.protocol = 5 if self._draw("protocol") < behaviour.v5_share else 4

    def heartbeat_s(self) -> float:
        """Return the seconds until the next heartbeat."""
        deviation = 2 * self._draw("heartbeat") - 1  # from -1 to 1
        return self._behaviour.heartbeat_s * (1 + _HEARTBEAT_JITTER * deviation)

    def think_s(self) -> float:
        """Return the seconds until the current message is acknowledged."""
        minimum_s, maximum_s = self._behaviour.think_s
        return minimum_s + (maximum_s - minimum_s) * self._draw("think")

    def stay_s(self) -> float | None:
        """Return the seconds until the vehicle leaves on its own; None: never."""
        mean_s = self._behaviour.stay_s
        return None if mean_s is None else self._draw_duration("stay", mean_s)

    def away_s(self) -> float:
        """Return the seconds until the vehicle reconnects."""
        return self._draw_duration("away", self._behaviour.away_s)

    def crashes(self) -> bool:
        """Whether the vehicle leaves without a DISCONNECT this time."""
        return self._draw("crash") < self._behaviour.crash_share

    def crashes_before_ack(self) -> bool:
        """Whether the vehicle crashes before it acknowledges the current message."""
        return self._draw("crash before ack") < self._behaviour.crash_before_ack_share

    def starts_clean(self) -> bool:
        """Whether the vehicle reconnects with a clean start this time."""
        return self._draw("clean") < self._behaviour.clean_share

    def retry_s(self, attempt: int) -> float:
        """Return the seconds until the next attempt to connect, after `attempt` failures in a row."""
        backoff_s = float(min(0.2 * 2**attempt, 10.0))
        return backoff_s * (0.5 + self._draw("retry"))

    def _draw_duration(self, kind: str, mean_s: float) -> float:
        """Return a random duration with an exponential distribution."""
        return -mean_s * math.log(1 - self._draw(kind))

    def _draw(self, kind: str) -> float:
        """Return the next number in [0, 1) for this kind of decision.

        It is a hash of the kind and of the count of draws, because a random generator for each vehicle would take more memory.
        """
        self._drawn[kind] += 1
        digest = blake2b(f"{self._root}/{kind}/{self._drawn[kind]}".encode(), digest_size=7).digest()
        first_53_bits = int.from_bytes(digest) >> 3  # of 56; a float has 53 bits of precision
        return first_53_bits / (1 << 53)
