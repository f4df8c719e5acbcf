"""Validates incoming messages, and detects duplicate triggers.

A message becomes a trigger, data, a change of a compacted queue, a campaign order, or refused input.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from manifold.archive.records import Annotation
from manifold.contracts import campaigns, topics
from manifold.contracts.brakes import Braking, braking_of
from manifold.contracts.campaigns import Cancel, Command, Complete, Pause
from manifold.contracts.ecq import ACKNOWLEDGEMENTS, Append, EcqAck, Rewind, parse_ecq
from manifold.contracts.envelope import DUPLICATE_OF, INLINE, Envelope, Stream, inline_encoding
from manifold.contracts.keys import OUTCOMES
from manifold.contracts.messages import (
    SHOWN,
    Data,
    Receipt,
    ReceiptStatus,
    Refused,
    Trigger,
    parse_data,
    parse_trigger,
    shown,
)
from manifold.contracts.names import SERVICE_PREFIX
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.seq import SeqSource
from manifold.messaging.mqtt import Message
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._kinds import needs_handoff, parse_dispatcher_record, stream_of
from manifold.recorder._rate_limit import Admission, RateLimit, recorded_parts, rewound_queue
from manifold.recorder._recorded import Recorded
from manifold.settings import Settings

DIGEST = "sdv-digest"  # header of an accepted trigger with its digest, so that the trigger is not parsed again after a restart
PACKET_ID = "sdv-packet-id"  # header of a message of the stream ecq; a redelivered message has the same packet id
Content = Trigger | Data | Append | Rewind | Command | Refused
Parsed = tuple[Stream, Content]

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Incoming:
    """One message on its way through the recorder. The hand-over to the queues sets or changes the last four fields."""

    envelope: Envelope
    message: Message | None = None  # None if the message is replayed from the journal or the archive, or is an outcome
    trigger: Trigger | None = None
    data: Data | None = None
    digest: str | None = None  # of the trigger, by which duplicates are found
    ecq: Append | Rewind | None = None
    braking: Braking | None = None
    is_redelivered: bool = False  # recorded before with this seq, so it is only acknowledged, with a receipt
    is_dropped: bool = False  # over the rate limit and not recorded; its seq is that of the recorded refusal
    applied: bool = False  # whether it took effect, in the queues or as a brake
    duplicate_of: int | None = None  # seq of the earlier trigger that this one repeats
    refused_because: str | None = None
    not_in_force: str | None = None  # why an order that brakes a campaign has no effect yet

    @property
    def seq(self) -> int:
        """The message's own seq."""
        return self.envelope.seq

    @property
    def offerable(self) -> bool:
        """Whether the message may take effect, in the queues or as a brake: it is neither refused nor a duplicate."""
        return self.refused_because is None and self.duplicate_of is None

    @property
    def is_only_answered(self) -> bool:
        """Whether the message is acknowledged, with a receipt, without being recorded."""
        return self.is_redelivered or self.is_dropped

    @property
    def annotation(self) -> Annotation:
        """The result of the enqueue, for the journal."""
        return Annotation(self.seq, self.applied, self.duplicate_of, self.refused_because)

    @property
    def receipt(self) -> Receipt:
        """The receipt for the publisher."""
        if self.refused_because is not None:
            return Receipt(self.seq, ReceiptStatus.REFUSED, reason=self.refused_because)
        if self.duplicate_of is not None:
            return Receipt(self.seq, ReceiptStatus.DUPLICATE, duplicate_of=self.duplicate_of)
        return Receipt(self.seq, ReceiptStatus.RECORDED, reason=self.not_in_force)


class Parser:
    """Assigns each message its seq and validates it."""

    def __init__(self, settings: Settings, dedupe: DedupeWindow) -> None:
        self._settings, self._dedupe = settings, dedupe
        self._rewinds = RateLimit(settings.ecq_rewinds_per_hour, rewound_queue)
        self.seqs = SeqSource(settings.node)  # the recorder replaces it at start by the seqs of its lease

    def build(self, message: Message, parsed: Parsed | None = None, redelivered: Recorded | None = None) -> Incoming:
        """Build the record of a message.

        `parsed` is the result of the validation if it has already taken place; `redelivered` is the earlier record of a
        redelivered message. Invalid input is refused and never raises; so is a message whose validation raises any exception.
        """
        # A redelivered message was counted by the rate limit when it first arrived.
        admission = self._rewinds.judge(message) if redelivered is None else Admission.ADMITTED
        if admission is not Admission.ADMITTED:
            stream, content = self._rate_limit_refusal(message)
        elif parsed is not None:
            stream, content = parsed
        else:
            stream, content = self._validate(message)
        # What is answered: None is an acceptance whose content no longer matters.
        answered: Content | None = content if redelivered is None else self._as_recorded(message, content, redelivered)
        payload, properties = recorded_parts(message)
        # Drop headers with Manifold's own prefix: a publisher must not forge them.
        headers = {name: value for name, value in properties.items() if not name.startswith(SERVICE_PREFIX)}
        if stream is Stream.ECQ and message.qos:
            headers[PACKET_ID] = str(message.mid)
        seq = self._seq_for(message, admission) if redelivered is None else redelivered.seq
        envelope = Envelope(seq, datetime.now(UTC), stream, message.topic, payload, message.qos, headers)
        incoming = Incoming(envelope, message, is_redelivered=redelivered is not None)
        incoming.is_dropped = admission is Admission.DROPPED
        match answered:  # other orders of campaigns are only recorded, and None is only answered
            case Refused(reason):
                incoming.refused_because = encodable(reason)
            case Data():
                incoming.data = answered
            case Append() | Rewind():
                incoming.ecq = answered
            case Pause() | Cancel() | Complete():
                incoming.braking = braking_of(seq, answered)
            case Trigger():
                self._set_trigger(incoming, answered, headers)
        if incoming.is_dropped:
            incoming.refused_because = f"{incoming.refused_because}; only the first such refusal is recorded, under this seq"
        if incoming.refused_because is not None:
            incoming.envelope = replace(incoming.envelope, refused_because=incoming.refused_because)
        return incoming

    def build_outcome(self, payload: bytes) -> Incoming:
        """Build the record of a dispatcher's outcome, or of an acknowledgement of a compacted queue; refuse what is neither."""
        stream = Stream.OUTCOME
        refused_because: str | None = None
        try:
            match parse_dispatcher_record(payload):
                case EcqAck(client_id=client_id):
                    stream, topic = Stream.ECQ, f"{ACKNOWLEDGEMENTS}{client_id}"
                case OutcomeRecord(vin=vin):
                    topic = encodable(f"{OUTCOMES}/{vin}")
        except ValueError as exc:
            topic, refused_because = OUTCOMES, encodable(str(exc))
        envelope = Envelope(self.seqs.next(), datetime.now(UTC), stream, topic, payload, refused_because=refused_because)
        return Incoming(envelope, refused_because=refused_because)

    def read_back(self, envelope: Envelope) -> Incoming:
        """Build the record of a message that was recorded before, to replay it; parse it again if it may be enqueued."""
        incoming = Incoming(envelope, digest=envelope.headers.get(DIGEST), applied=envelope.applied)
        incoming.duplicate_of, incoming.refused_because = envelope.duplicate_of, envelope.refused_because
        if not incoming.offerable or not needs_handoff(envelope.stream, envelope.topic):
            return incoming
        inline = inline_encoding(envelope.headers, self._settings.inline_encoding)
        _, parsed = self.parse(envelope.topic, envelope.payload, inline)
        match parsed:
            case Refused(reason):  # it was valid when it arrived, but a limit has been lowered since
                incoming.refused_because = reason
            case Data():
                incoming.data = parsed
            case Append() | Rewind():
                incoming.ecq = parsed
            case Trigger():
                incoming.trigger = parsed
                incoming.digest = incoming.digest or parsed.digest
        return incoming

    def parse(self, topic: str, payload: bytes, inline: str = "") -> Parsed:
        """Return a topic's stream and the parsed payload; instead of an invalid payload, its refusal.

        `inline` is the encoding of inline data that was set when the message arrived; empty: the current setting applies.
        """
        stream = stream_of(topic)
        try:
            return stream, self._parse(topic, payload, inline)
        except Exception as exc:
            log.exception("message refused: its validation failed", topic=topic[:SHOWN], payload_bytes=len(payload))
            return stream, Refused(
                f"validation failed ({type(exc).__name__}), a bug in the recorder; the payload is in quarantine"
            )

    def _validate(self, message: Message) -> Parsed:
        """Parse a message; refuse one whose packet the client could not read."""
        if message.unreadable is None:
            return self.parse(message.topic, message.payload)
        remedy = "the raw packet is kept; publish valid MQTT 5 with UTF-8 strings"
        return stream_of(message.topic), Refused(f"the packet cannot be read ({message.unreadable}); {remedy}")

    def _seq_for(self, message: Message, admission: Admission) -> int:
        """Return a new seq; for a dropped message, return the seq of the recorded refusal that stands for it.

        If the rate limit refuses the message, it remembers the new seq for the messages that it drops next.
        """
        if admission is Admission.DROPPED:
            return self._rewinds.refusal_seq(message)
        seq = self.seqs.next()
        if admission is Admission.REFUSED:
            self._rewinds.remember_refusal(message, seq)
        return seq

    def _as_recorded(self, message: Message, content: Content, redelivered: Recorded) -> Content | None:
        """What to answer a redelivered message: the same as on its first delivery, even if the limits have changed since.

        `content` is the result of validating it again. None is an acceptance whose content no longer matters.
        """
        was_refused, would_be_refused = redelivered.refused, isinstance(content, Refused)
        if was_refused == would_be_refused:
            return content
        if not was_refused:
            return None
        if message.topic.startswith(topics.ECQ_REWIND_PREFIX):  # a rewind that is valid now was refused because of the rate limit
            _, refusal = self._rate_limit_refusal(message)
            return refusal
        return Refused("it was refused on its first delivery; see the reason in quarantine")

    def _rate_limit_refusal(self, message: Message) -> Parsed:
        """The stream and the refusal of a message that exceeds the rate limit of rewinds."""
        limit = f"ecq_rewinds_per_hour={self._settings.ecq_rewinds_per_hour}"
        return stream_of(message.topic), Refused(f"rewinds of this queue come faster than {limit}; wait, or raise the setting")

    def _parse(self, topic: str, payload: bytes, inline: str) -> Content:
        """Parse a payload as its topic requires; return a refusal if it is invalid, too large, or the topic is unknown."""
        settings = self._settings
        if topic.startswith(topics.ECQ_PREFIX):
            return parse_ecq(topic, payload, max_data_bytes=settings.max_data_bytes)
        is_trigger = topic in (*topics.TRIGGER_TOPICS, topics.RELEASE)
        is_order = topic == topics.CAMPAIGN
        if (is_trigger or is_order) and len(payload) > settings.max_trigger_bytes:
            kind = "order" if is_order else "trigger"
            reason = f"{kind} of {len(payload)} bytes is over max_trigger_bytes={settings.max_trigger_bytes}"
            return Refused(f"{reason}; send several {kind}s or raise the setting")
        if is_order:
            return campaigns.decode(payload)
        if is_trigger:
            limits = {"max_ids": settings.max_ids, "max_data_bytes": settings.max_data_bytes}
            inline = inline or settings.inline_encoding
            return parse_trigger(payload, **limits, inline_encoding=inline, is_release=topic == topics.RELEASE)
        data_id = topics.data_id_of(topic)
        if data_id is not None:
            return parse_data(data_id, payload, max_data_bytes=settings.max_data_bytes)
        return Refused(f"unknown topic {shown(topic)}; publish to {topics.TRIGGER} or {topics.DATA_PREFIX}<data_id>")

    def _set_trigger(self, incoming: Incoming, trigger: Trigger, headers: dict[str, str]) -> None:
        """Set the trigger, its digest and, if it is a duplicate, the seq of the original; the envelope's `headers` get both."""
        incoming.trigger = trigger
        if trigger.data is not None:
            headers[INLINE] = self._settings.inline_encoding
        incoming.digest = headers[DIGEST] = trigger.digest
        first_seq = self._dedupe.first(incoming.digest, incoming.seq)
        if first_seq != incoming.seq:
            incoming.duplicate_of = first_seq
            headers[DUPLICATE_OF] = str(first_seq)


def encodable(text: str) -> str:
    """Replace what UTF-8 cannot encode, such as half of a surrogate pair, which a JSON escape can contain."""
    return text.encode("utf-8", "replace").decode()
