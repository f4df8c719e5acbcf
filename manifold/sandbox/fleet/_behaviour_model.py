"""The decisions of a simulated vehicle and their times, drawn from seed and VIN alone, so that runs repeat. Pure."""

import math
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from manifold.contracts.names import Owner

_HEARTBEAT_JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a fleet behaves. Shares are probabilities from 0 to 1.

    A vehicle stays until it is told to go, unless `stay_s` is given. By default none ever crashes.
    """

    heartbeat_s: float = 60.0  # give or take a tenth
    think_s: tuple[float, float] = (0.0, 0.05)  # least and most, between a message and its acknowledgement
    stay_s: float | None = None  # how long a vehicle is online, on average, before it leaves by itself
    away_s: float = 30.0  # how long it is away then, on average
    crash_share: float = 0.0  # departures without DISCONNECT
    crash_before_ack_share: float = 0.0  # messages that the vehicle does not live to acknowledge
    clean_share: float = 0.0  # returns that forget the session
    v5_share: float = 0.5  # vehicles on MQTT 5; the others speak 3.1.1
    session_expiry_s: int = 3600  # MQTT 5 only; on 3.1.1 the broker decides
    keepalive_s: int = 60
    compacted_queues: bool = False  # vehicles subscribe to theirs, too


DRIVING = Behaviour(
    stay_s=45.0, away_s=10.0, crash_share=0.3, crash_before_ack_share=0.01, clean_share=0.2, think_s=(0.01, 0.5)
)  # busy roads: what the command line simulates


class BehaviourModel:
    """The decisions of one vehicle, in order. Each kind of decision has a sequence of its own, whatever happens in between."""

    def __init__(self, seed: int, vin: Owner, behaviour: Behaviour) -> None:
        self._root = f"{seed}/{vin}"
        self._behaviour = behaviour
        self._drawn: Counter[str] = Counter()
        self.protocol = 5 if self._draw("protocol") < behaviour.v5_share else 4

    def heartbeat_s(self) -> float:
        """Until the next heartbeat."""
        return self._behaviour.heartbeat_s * (1 + _HEARTBEAT_JITTER * (2 * self._draw("heartbeat") - 1))

    def think_s(self) -> float:
        """Until the message that has just come is acknowledged."""
        least, most = self._behaviour.think_s
        return least + (most - least) * self._draw("think")

    def stay_s(self) -> float | None:
        """Until the vehicle leaves by itself; None: it does not."""
        return None if self._behaviour.stay_s is None else self._about(self._behaviour.stay_s, "stay")

    def away_s(self) -> float:
        """Until it is back."""
        return self._about(self._behaviour.away_s, "away")

    def crashes(self) -> bool:
        """Whether it leaves without a word this time."""
        return self._draw("crash") < self._behaviour.crash_share

    def crashes_before_ack(self) -> bool:
        """Whether it dies before it acknowledges the message that has just come."""
        return self._draw("crash before ack") < self._behaviour.crash_before_ack_share

    def forgets(self) -> bool:
        """Whether it comes back with a clean start."""
        return self._draw("clean") < self._behaviour.clean_share

    def retry_s(self, attempt: int) -> float:
        """Until the next try, after `attempt` connections that failed."""
        return float(min(0.2 * 2**attempt, 10.0)) * (0.5 + self._draw("retry"))

    def _about(self, mean_s: float, kind: str) -> float:
        return -mean_s * math.log(1 - self._draw(kind))

    def _draw(self, kind: str) -> float:
        """A number from 0 up to 1: the hash of what it is for. Unlike a generator it needs no memory for each vehicle."""
        self._drawn[kind] += 1
        digest = blake2b(f"{self._root}/{kind}/{self._drawn[kind]}".encode(), digest_size=7)
        return (int.from_bytes(digest.digest()) >> 3) / (1 << 53)
