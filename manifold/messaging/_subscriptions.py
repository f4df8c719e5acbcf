"""The subscriptions of a client, and whether the broker has confirmed all of them."""

import asyncio
from collections.abc import Iterable, Sequence

import mqtt5
import structlog

from manifold.contracts.errors import Permanent

FIRST_REFUSAL = 0x80  # reason codes from here on mean no
QOS = (mqtt5.QoS.AT_MOST_ONCE, mqtt5.QoS.AT_LEAST_ONCE, mqtt5.QoS.EXACTLY_ONCE)

# Pauses before a new connection after the broker has refused a subscription: a broker that is starting allows it a second later;
# where it stays refused, the others shall work meanwhile.
_PAUSES_S = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
log = structlog.get_logger(__name__)


class Subscriptions:
    """The filters of a client, sent all together whenever one is new or the broker has forgotten the session."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._filters: dict[str, int] = {}
        self._confirmed = False
        self._refusals = 0  # one after the other
        self._mid: int | None = None  # of the SUBSCRIBE whose SUBACK counts
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def complete(self) -> bool:
        """Whether the session at the broker is known to hold every filter."""
        return self._confirmed or not self._filters

    def add(self, filters: Iterable[str], qos: int) -> "asyncio.Future[None]":
        """Want these too; the answer is done when the broker has confirmed all filters, or Permanent when it has refused one."""
        self._filters.update(dict.fromkeys(filters, qos))
        self._confirmed = False
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        return answer

    def lost(self) -> None:
        """The broker has forgotten the session."""
        self._confirmed = False

    def packet(self, mid: int) -> bytes:
        """The SUBSCRIBE that asks for all of them; only its own answer counts from now on."""
        self._mid = mid
        return mqtt5.SubscribePacket(mid, [_filter(name, qos) for name, qos in self._filters.items()]).write()

    def answered(self, mid: int, reasons: Sequence[int]) -> float | None:
        """Take a SUBACK. Returns the seconds after which to try on a new connection, None if all is well or the answer is old."""
        if mid != self._mid:  # a newer one with more filters is under way
            return None
        names = zip(self._filters, reasons, strict=False)
        refused = [f"{name} ({_named(reason)})" for name, reason in names if reason >= FIRST_REFUSAL]
        self._confirmed = not refused
        self._refusals = self._refusals + 1 if refused else 0
        self._tell(refused)
        if not refused:
            return None
        log.error("mqtt subscription refused", client=self._client_id, refused=refused)
        return _PAUSES_S[min(self._refusals, len(_PAUSES_S)) - 1]

    def _tell(self, refused: list[str]) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            if answer.done():
                continue
            if refused:
                answer.set_exception(Permanent(f"the broker refuses {self._client_id} {', '.join(refused)}; allow it there"))
                answer.exception()  # whoever does not await it has the log line
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
