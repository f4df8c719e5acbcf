"""The subscriptions of a client, and whether the broker has confirmed all of them."""

import asyncio
from collections.abc import Iterable, Sequence

import mqtt5
import structlog

from manifold.contracts.errors import Permanent

FIRST_REFUSAL = 0x80  # reason codes from here on are errors
QOS = (mqtt5.QoS.AT_MOST_ONCE, mqtt5.QoS.AT_LEAST_ONCE, mqtt5.QoS.EXACTLY_ONCE)

# Pauses before reconnecting after a refused subscription: a starting broker allows it a second later; if it stays refused, the
# other subscriptions should work meanwhile.
_PAUSES_S = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
log = structlog.get_logger(__name__)


class Subscriptions:
    """The topic filters of a client, resubscribed together when one is added or the session is lost."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._filters: dict[str, int] = {}
        self._confirmed = False
        self._refusals = 0  # consecutive refusals
        self._mid: int | None = None  # packet id of the latest SUBSCRIBE, whose SUBACK counts
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def complete(self) -> bool:
        """Whether the broker's session is known to have every filter."""
        return self._confirmed or not self._filters

    def add(self, filters: Iterable[str], qos: int) -> "asyncio.Future[None]":
        """Add filters; the future completes when the broker has confirmed all of them, or raises Permanent if it refuses one."""
        self._filters.update(dict.fromkeys(filters, qos))
        self._confirmed = False
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        return answer

    def note_loss(self) -> None:
        """Record that the broker lost the session."""
        self._confirmed = False

    def packet(self, mid: int) -> bytes:
        """Build a SUBSCRIBE for all filters; from now on only its SUBACK counts."""
        self._mid = mid
        return mqtt5.SubscribePacket(mid, [_filter(name, qos) for name, qos in self._filters.items()]).write()

    def handle_suback(self, mid: int, reasons: Sequence[int]) -> float | None:
        """Handle a SUBACK. Returns the seconds to wait before reconnecting, or None on success or for an outdated SUBACK."""
        if mid != self._mid:  # a newer SUBSCRIBE with more filters is pending
            return None
        names = zip(self._filters, reasons, strict=False)
        refused = [f"{name} ({_named(reason)})" for name, reason in names if reason >= FIRST_REFUSAL]
        self._confirmed = not refused
        self._refusals = self._refusals + 1 if refused else 0
        self._answer_waiting(refused)
        if not refused:
            return None
        log.error("mqtt subscription refused", client=self._client_id, refused=refused)
        return _PAUSES_S[min(self._refusals, len(_PAUSES_S)) - 1]

    def _answer_waiting(self, refused: list[str]) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            if answer.done():
                continue
            if refused:
                answer.set_exception(Permanent(f"the broker refuses {self._client_id} {', '.join(refused)}; allow it there"))
                answer.exception()  # retrieve it so that asyncio does not warn; the log line reports it
            else:
                answer.set_result(None)


def _filter(name: str, qos: int) -> mqtt5.TopicFilter:
    no = mqtt5.RetainHandling.SEND_NEVER
    return mqtt5.TopicFilter(name, max_qos=QOS[qos], retain_as_published=False, retain_handling=no)


def _named(reason: int) -> str:
    try:
        return mqtt5.SubAckReasonCode(reason).name.lower()
    except ValueError:
        return f"{reason:#x}"
