"""Removes denied filters from SUBSCRIBEs to the broker, and completes the broker's SUBACKs with refusals, as EMQX would.

Mosquitto itself grants every filter, and withholds the messages that the client may not read, so the client does not learn that a
filter was denied. Its reason codes for invalid topics differ from EMQX's, and it accepts some filters that EMQX does not.
"""

from typing import NamedTuple

from manifold.contracts.rights import Action, Rights
from manifold.sandbox.tap.packets import packet, read_suback, read_subscribe, string, unsubscribe
from manifold.sandbox.tap.scanner import DISCONNECT, SUBACK, SUBSCRIBE
from manifold.sandbox.tap.topic_syntax import TOPIC_FILTER_INVALID, is_topic_filter

GRANTED, FAILURE, NOT_AUTHORIZED = 0, 0x80, 0x87  # SUBACK reason codes; before MQTT 5, FAILURE is the only refusal
_UNUSED_FILTER = b"$denied"  # nobody has subscribed to it
_SUBSCRIBE_HEAD = SUBSCRIBE << 4 | 2
_MALFORMED = packet(_SUBSCRIBE_HEAD, b"\0\1\0\0\0")  # a SUBSCRIBE for which Mosquitto disconnects a client of any version


class Decision(NamedTuple):
    """The decision about one SUBSCRIBE or UNSUBSCRIBE."""

    granted: bytes | None  # body of a packet with the granted filters; None: no filter is granted
    replacement: bytes | None  # packet to forward instead of the client's; None: forward the client's


class SubscriptionRights:
    """The refused filters of one connection, until the broker's SUBACKs are completed.

    `fault` is the reason code of EMQX's DISCONNECT once the client has used an invalid topic or filter, for which the broker will
    disconnect it; else None. The observer sets it for topics, `decide` for filters.
    """

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self.fault: int | None = None
        self._refused: dict[int, bytes] = {}  # by packet id: for each filter of the SUBSCRIBE, GRANTED or a refusal

    @property
    def is_pending(self) -> bool:
        """Whether one of the broker's next packets must be completed."""
        return bool(self._refused) or self.fault is not None

    def decide(self, kind: int, body: bytes, version: int, client_id: str, username: str) -> Decision:
        """Decide which filters of a SUBSCRIBE are granted, and which packet is forwarded. An UNSUBSCRIBE is granted as it is.

        A packet with an invalid filter, or without filters, is replaced by one for which the broker disconnects the client. If no
        filter is granted, an UNSUBSCRIBE takes the SUBSCRIBE's place, so that the broker still answers in order.
        """
        head, filters = read_subscribe(body, version, with_options=kind == SUBSCRIBE)  # head: packet id and properties
        if not filters or not all(is_topic_filter(topic_filter) for topic_filter, _ in filters):
            self.fault = TOPIC_FILTER_INVALID
            return Decision(granted=None, replacement=_MALFORMED)
        if kind != SUBSCRIBE:
            return Decision(granted=body, replacement=None)
        refusal = NOT_AUTHORIZED if version >= 5 else FAILURE
        reasons, granted_filters = bytearray(), bytearray()  # bytes would be copied for each filter
        for topic_filter, options in filters:
            text = topic_filter.decode("utf-8", "replace")
            if self._rights.allows(client_id, username, Action.SUBSCRIBE, text):
                reasons.append(GRANTED)
                granted_filters += string(topic_filter) + bytes((options,))
            else:
                reasons.append(refusal)
        if refusal not in reasons:
            return Decision(granted=body, replacement=None)
        mid = int.from_bytes(head[:2])
        self._refused[mid] = bytes(reasons)
        if not granted_filters:
            return Decision(granted=None, replacement=unsubscribe(mid, version, _UNUSED_FILTER))
        granted_body = head + granted_filters
        return Decision(granted_body, replacement=packet(_SUBSCRIBE_HEAD, granted_body))

    def complete(self, kind: int, body: bytes, version: int) -> bytes | None:
        """Return the packet that replaces the broker's SUBACK, UNSUBACK or DISCONNECT; None: forward the broker's.

        A SUBACK gets the refused filters' reason codes in addition to the broker's. An UNSUBACK is replaced if it answers the
        UNSUBSCRIBE that has taken the place of a SUBSCRIBE.
        """
        if kind == DISCONNECT:
            return None if self.fault is None else packet(DISCONNECT << 4, bytes((self.fault,)))
        mid = body[:2]
        reasons = self._refused.pop(int.from_bytes(mid), None)
        if reasons is None:
            return None
        broker_reasons = iter(read_suback(body, version)[1] if kind == SUBACK else b"")
        completed = bytearray()
        for reason in reasons:
            # The broker has answered for the granted filters only, in the same order.
            completed.append(next(broker_reasons, FAILURE) if reason == GRANTED else reason)
        no_properties = b"\0" if version >= 5 else b""
        return packet(SUBACK << 4, mid + no_properties + completed)
