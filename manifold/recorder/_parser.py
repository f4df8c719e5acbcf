"""Validates incoming messages: a trigger, data, a campaign order, or refused input; and whether a trigger is a duplicate."""

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
from manifold.recorder._kinds import dispatchers_record, needs_handoff, stream_of
from manifold.recorder._rate_limit import Admission, RateLimit, bounded, rewound_queue
from manifold.recorder._recorded import Recorded
from manifold.settings import Settings

DIGEST = "sdv-digest"  # header of an accepted trigger; saves parsing it after a restart
PACKET_ID = "sdv-packet-id"  # header of a message of the stream ecq; the same when the broker redelivers it
Content = Trigger | Data | Append | Rewind | Command | Refused
Parsed = tuple[Stream, Content]

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Incoming:
    """One message on its way through the recorder. The hand-over sets the last four fields."""

    envelope: Envelope
    message: Message | None = None  # None: replayed from the journal or the archive
    trigger: Trigger | None = None
    data: Data | None = None
    digest: str | None = None
    ecq: Append | Rewind | None = None
    braking: Braking | None = None
    is_redelivered: bool = False  # recorded before with this seq; only answered to its publisher and acknowledged
    is_dropped: bool = False  # too soon after others and not recorded; its seq is that of the recorded refusal
    applied: bool = False
    duplicate_of: int | None = None
    refused_because: str | None = None
    not_in_force: str | None = None  # why an order that brakes a campaign has no effect yet

    @property
    def seq(self) -> int:
        """The message's own seq."""
        return self.envelope.seq

    @property
    def offerable(self) -> bool:
        """Whether the message must be enqueued."""
        return self.refused_because is None and self.duplicate_of is None

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
        self.seqs = SeqSource(settings.node)  # replaced at start by the leased seqs

    def take(self, message: Message, parsed: Parsed | None = None, redelivered: Recorded | None = None) -> Incoming:
        """Build the record of a message; `parsed` if it was validated elsewhere, `redelivered` if it was recorded before.

        Invalid input is refused, never raised, and so is a message whose validation raises any exception.
        """
        admission = self._rewinds.judge(message) if redelivered is None else Admission.ADMITTED
        stream, content = (parsed or self._validate(message)) if admission is Admission.ADMITTED else self._limited(message)
        answered = content if redelivered is None else self._as_recorded(message, content, redelivered)
        payload, properties = bounded(message)
        # Drop headers with Manifold's own prefix: a publisher must not forge them.
        headers = {name: value for name, value in properties.items() if not name.startswith(SERVICE_PREFIX)}
        if stream is Stream.ECQ and message.qos:
            headers[PACKET_ID] = str(message.mid)
        seq = self._seq_for(message, admission) if redelivered is None else redelivered.seq
        envelope = Envelope(seq, datetime.now(UTC), stream, message.topic, payload, message.qos, headers)
        incoming = Incoming(envelope, message, is_redelivered=redelivered is not None)
        incoming.is_dropped = admission is Admission.DROPPED
        match answered:
            case Refused(reason):
                incoming.refused_because = plain(reason)
            case Data():
                incoming.data = answered
            case Append() | Rewind():
                incoming.ecq = answered
            case Pause() | Cancel() | Complete():
                incoming.braking = braking_of(seq, answered)
            case Trigger():
                self._take_trigger(incoming, answered, headers)
        if incoming.is_dropped:
            incoming.refused_because = f"{incoming.refused_because}; only the first such refusal is recorded, under this seq"
        if incoming.refused_because is not None:
            incoming.envelope = replace(incoming.envelope, refused_because=incoming.refused_because)
        return incoming

    def take_outcome(self, payload: bytes) -> Incoming:
        """Build the record of a dispatcher's outcome, or of an acknowledgement of a compacted queue."""
        stream, refused = Stream.OUTCOME, None
        try:
            match dispatchers_record(payload):
                case EcqAck(client_id=client_id):
                    stream, topic = Stream.ECQ, f"{ACKNOWLEDGEMENTS}{client_id}"
                case OutcomeRecord(vin=vin):
                    topic = plain(f"{OUTCOMES}/{vin}")
        except ValueError as exc:
            topic, refused = OUTCOMES, plain(str(exc))
        envelope = Envelope(self.seqs.next(), datetime.now(UTC), stream, topic, payload, refused_because=refused)
        return Incoming(envelope, refused_because=refused)

    def read_back(self, envelope: Envelope) -> Incoming:
        """Parse an envelope of the journal or the archive again, to replay it."""
        incoming = Incoming(envelope, digest=envelope.headers.get(DIGEST), applied=envelope.applied)
        incoming.duplicate_of, incoming.refused_because = envelope.duplicate_of, envelope.refused_because
        if not incoming.offerable or not needs_handoff(envelope.stream, envelope.topic):
            return incoming
        inline = inline_encoding(envelope.headers, self._settings.inline_encoding)
        _, parsed = self.parse(envelope.topic, envelope.payload, inline)
        match parsed:
            case Refused(reason):  # a limit has been lowered since
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
        """Return a topic's stream and the parsed payload. `inline` is the encoding of inline data when the message arrived."""
        stream = stream_of(topic)
        try:
            return stream, self._parse(topic, payload, inline)
        except Exception as exc:
            log.exception("message validation failed", topic=topic[:SHOWN], size=len(payload))
            return stream, Refused(
                f"validation failed ({type(exc).__name__}), a bug in the recorder; the payload is in quarantine"
            )

    def _validate(self, message: Message) -> Parsed:
        if message.unreadable is None:
            return self.parse(message.topic, message.payload)
        remedy = "the raw packet is kept; publish valid MQTT 5 with UTF-8 strings"
        return stream_of(message.topic), Refused(f"the packet cannot be read ({message.unreadable}); {remedy}")

    def _seq_for(self, message: Message, admission: Admission) -> int:
        if admission is Admission.DROPPED:
            return self._rewinds.refusal_seq(message)
        seq = self.seqs.next()
        if admission is Admission.REFUSED:
            self._rewinds.note_refusal(message, seq)
        return seq

    def _as_recorded(self, message: Message, content: Content, redelivered: Recorded) -> Content | None:
        """The answer as it was recorded, whatever the limits are by now; `content` is the new judgement."""
        if redelivered.refused == isinstance(content, Refused):
            return content
        if not redelivered.refused:
            return None
        if message.topic.startswith(topics.ECQ_REWIND_PREFIX):  # it is valid otherwise
            return self._limited(message)[1]
        return Refused("it was refused on its first delivery; see the reason in quarantine")

    def _limited(self, message: Message) -> Parsed:
        limit = f"ecq_rewinds_per_hour={self._settings.ecq_rewinds_per_hour}"
        return stream_of(message.topic), Refused(f"rewinds of this queue come faster than {limit}; wait, or raise the setting")

    def _parse(self, topic: str, payload: bytes, inline: str) -> Content:
        settings = self._settings
        if topic.startswith(topics.ECQ_PREFIX):
            return parse_ecq(topic, payload, max_data_bytes=settings.max_data_bytes)
        if topic in (*topics.TRIGGER_TOPICS, topics.RELEASE, topics.CAMPAIGN) and len(payload) > settings.max_trigger_bytes:
            what = "order" if topic == topics.CAMPAIGN else "trigger"
            reason = f"{what} of {len(payload)} bytes is over max_trigger_bytes={settings.max_trigger_bytes}"
            return Refused(f"{reason}; send several {what}s or raise the setting")
        if topic == topics.CAMPAIGN:
            return campaigns.decode(payload)
        if topic in (*topics.TRIGGER_TOPICS, topics.RELEASE):
            limits = {"max_ids": settings.max_ids, "max_data_bytes": settings.max_data_bytes}
            inline = inline or settings.inline_encoding
            return parse_trigger(payload, **limits, inline=inline, is_release=topic == topics.RELEASE)
        data_id = topics.data_id_of(topic)
        if data_id is not None:
            return parse_data(data_id, payload, max_data_bytes=settings.max_data_bytes)
        return Refused(f"unknown topic {shown(topic)}; publish to {topics.TRIGGER} or {topics.DATA_PREFIX}<data_id>")

    def _take_trigger(self, incoming: Incoming, trigger: Trigger, headers: dict[str, str]) -> None:
        incoming.trigger = trigger
        if trigger.data is not None:
            headers[INLINE] = self._settings.inline_encoding
        incoming.digest = headers[DIGEST] = trigger.digest
        first = self._dedupe.first(incoming.digest, incoming.seq)
        if first != incoming.seq:
            incoming.duplicate_of = first
            headers[DUPLICATE_OF] = str(first)


def plain(text: str) -> str:
    """Text that UTF-8 can encode: JSON escapes can name half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
