"""The subscriptions of a client, and whether the broker has confirmed all of them."""

import asyncio
from collections.abc import Iterable, Sequence

import mqtt5
import structlog

from manifold.contracts.errors import Permanent

FIRST_REFUSAL = 0x80  # reason codes of at least this value are errors
QOS = (mqtt5.QoS.AT_MOST_ONCE, mqtt5.QoS.AT_LEAST_ONCE, mqtt5.QoS.EXACTLY_ONCE)

# Pauses before reconnecting after a refused subscription. They begin short because a starting broker may allow the subscription a
# second later. They grow because each reconnect interrupts the subscriptions that were granted.
_PAUSES_S = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
log = structlog.get_logger(__name__)


class Subscriptions:
    """The topic filters of a client, resubscribed together when one is added or the session is lost."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._filters: dict[str, int] = {}
        self._confirmed = False
        self._refusals = 0  # consecutive refusals
        self._mid: int | None = None  # packet id of the latest SUBSCRIBE; the SUBACKs of earlier ones are ignored
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def complete(self) -> bool:
        """Whether the broker's session is known to have every filter."""
        return self._confirmed or not self._filters

    def add(self, filters: Iterable[str], qos: int) -> "asyncio.Future[None]":
        """Add topic filters. The returned future completes when the broker has confirmed all filters of the client.

        The future raises Permanent if the broker refuses a filter.
        """
        self._filters.update(dict.fromkeys(filters, qos))
        self._confirmed = False
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def mark_unconfirmed(self) -> None:
        """Record that the broker lost the session, and with it all subscriptions."""
        self._confirmed = False

    def new_subscribe(self, mid: int) -> bytes:
        """Return the encoded SUBSCRIBE for all filters. From now on, the SUBACKs of earlier ones are ignored."""
        self._mid = mid
        return mqtt5.SubscribePacket(mid, [_filter(name, qos) for name, qos in self._filters.items()]).write()

    def handle_suback(self, mid: int, reasons: Sequence[int]) -> float | None:
        """Handle a SUBACK with one reason code per filter.

        Returns the seconds to wait before reconnecting if a filter was refused; otherwise, or if the SUBACK is outdated, None.
        """
        if mid != self._mid:  # a newer SUBSCRIBE with more filters is pending
            return None
        filters_and_reasons = zip(self._filters, reasons, strict=False)  # an undecodable SUBACK may have fewer reason codes
        refused = [f"{name} ({_reason_name(reason)})" for name, reason in filters_and_reasons if reason >= FIRST_REFUSAL]
        self._confirmed = not refused
        self._complete_futures(refused)
        if not refused:
            self._refusals = 0
            return None
        self._refusals += 1
        pause_index = min(self._refusals, len(_PAUSES_S)) - 1
        pause_s = _PAUSES_S[pause_index]
        log.error("mqtt subscription refused; reconnecting", client=self._client_id, refused=refused, pause_s=pause_s)
        return pause_s

    def _complete_futures(self, refused: list[str]) -> None:
        """Complete the futures that `add` returned: with Permanent if `refused` names a filter, else without an error."""
        futures, self._waiting = self._waiting, []
        for future in futures:
            if future.done():
                continue
            if refused:
                future.set_exception(Permanent(f"the broker refuses {self._client_id} {', '.join(refused)}; allow it there"))
                future.exception()  # retrieve the exception so that asyncio does not warn; a log line reports the refusal
            else:
                future.set_result(None)


def _filter(name: str, qos: int) -> mqtt5.TopicFilter:
    retain_handling = mqtt5.RetainHandling.SEND_NEVER
    return mqtt5.TopicFilter(name, max_qos=QOS[qos], retain_as_published=False, retain_handling=retain_handling)


def _reason_name(reason: int) -> str:
    try:
        return mqtt5.SubAckReasonCode(reason).name.lower()
    except ValueError:
        return f"{reason:#x}"
