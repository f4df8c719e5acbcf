"""Filters the SUBSCRIBEs sent to the broker, and completes the broker's answers, as EMQX would answer.

Mosquitto grants every filter and withholds the messages of denied ones, so that a client does not learn that it is not
subscribed. Its reason codes for invalid topics differ from EMQX's, and it grants some filters that EMQX does not.
"""

from typing import NamedTuple

from manifold.contracts.rights import Action, Rights
from manifold.sandbox.tap.packets import packet, read_suback, read_subscribe, string, unsubscribe
from manifold.sandbox.tap.scanner import DISCONNECT, SUBACK, SUBSCRIBE
from manifold.sandbox.tap.topic_syntax import TOPIC_FILTER_INVALID, is_topic_filter

GRANTED, FAILURE, NOT_AUTHORIZED = 0, 0x80, 0x87  # SUBACK reason codes; before MQTT 5 there is only one failure
_NOTHING = b"$denied"  # a filter that nobody has subscribed to
_SUBSCRIBE_HEAD = SUBSCRIBE << 4 | 2
_MALFORMED = packet(_SUBSCRIBE_HEAD, b"\0\1\0\0\0")  # for which Mosquitto disconnects a client of any version


class Decision(NamedTuple):
    """The decision about one SUBSCRIBE or UNSUBSCRIBE."""

    granted: bytes | None  # body of a packet with the granted filters; None: there are none
    replacement: bytes | None  # packet to forward; None: the client's own


class SubscriptionRights:
    """The SUBSCRIBEs of one connection, by packet id.

    Set `fault` to the reason code of EMQX's DISCONNECT if the broker will disconnect the client for an invalid topic.
    """

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self.fault: int | None = None
        self._refused: dict[int, bytes] = {}  # packet id → GRANTED or a refusal for each filter

    @property
    def is_pending(self) -> bool:
        """Whether a packet of the broker must be completed."""
        return bool(self._refused) or self.fault is not None

    def decide(self, kind: int, body: bytes, version: int, client_id: str, username: str) -> Decision:
        """Decide about a SUBSCRIBE or UNSUBSCRIBE. For an invalid filter, or none, EMQX disconnects the client.

        If nothing is granted, an UNSUBSCRIBE is forwarded instead, so that the broker answers in order.
        """
        head, wanted = read_subscribe(body, version, with_options=kind == SUBSCRIBE)
        if not wanted or not all(is_topic_filter(topic_filter) for topic_filter, _ in wanted):
            self.fault = TOPIC_FILTER_INVALID
            return Decision(None, _MALFORMED)
        if kind != SUBSCRIBE:
            return Decision(body, None)
        filters = [topic_filter.decode("utf-8", "replace") for topic_filter, _ in wanted]
        granted = [self._rights.allows(client_id, username, Action.SUBSCRIBE, each) for each in filters]
        if all(granted):
            return Decision(body, None)
        mid, refusal = int.from_bytes(head[:2]), NOT_AUTHORIZED if version >= 5 else FAILURE
        self._refused[mid] = bytes(GRANTED if is_granted else refusal for is_granted in granted)
        kept = b"".join(
            string(topic_filter) + bytes((options,))
            for (topic_filter, options), is_granted in zip(wanted, granted, strict=True)
            if is_granted
        )
        if not kept:
            return Decision(None, unsubscribe(mid, version, _NOTHING))
        return Decision(head + kept, packet(_SUBSCRIBE_HEAD, head + kept))

    def complete(self, kind: int, body: bytes, version: int) -> bytes | None:
        """Return the SUBACK or DISCONNECT that replaces the broker's packet; None: nothing was refused."""
        if kind == DISCONNECT:
            return None if self.fault is None else packet(DISCONNECT << 4, bytes((self.fault,)))
        refused = self._refused.pop(int.from_bytes(body[:2]), None)
        if refused is None:
            return None
        reasons = iter(read_suback(body, version)[1] if kind == SUBACK else b"")
        completed = bytes(next(reasons, FAILURE) if reason == GRANTED else reason for reason in refused)
        no_properties = b"\0" if version >= 5 else b""
        return packet(SUBACK << 4, body[:2] + no_properties + completed)
