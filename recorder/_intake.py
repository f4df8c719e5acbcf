"""What came in, judged: a trigger, data, or refused input; and whether it repeats an earlier trigger. No I/O."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from adapters.mqtt import Message
from contracts import topics
from contracts.envelope import DUPLICATE_OF, Envelope, Stream
from contracts.keys import OUTCOMES
from contracts.messages import Data, Receipt, ReceiptStatus, Refused, Trigger, parse_data, parse_trigger, trigger_digest
from contracts.names import SERVICE_PREFIX
from contracts.outcomes import OutcomeRecord
from contracts.seq import SeqSource
from contracts.settings import Settings
from recorder._dedupe import DedupeWindow
from recorder._records import Note

DIGEST = "sdv-digest"  # header of an accepted trigger, so that a restart need not parse it to know it again


@dataclass(slots=True)
class Incoming:
    """One message on its way through the recorder. The last three fields are what the hand-off makes of it."""

    envelope: Envelope
    message: Message | None = None  # None: read back from the journal or the archive
    trigger: Trigger | None = None
    data: Data | None = None
    digest: str | None = None
    applied: bool = False
    duplicate_of: int | None = None
    refused_because: str | None = None

    @property
    def seq(self) -> int:
        """The message's own seq."""
        return self.envelope.seq

    @property
    def offerable(self) -> bool:
        """Whether the queues have to hear of it."""
        return self.refused_because is None and self.duplicate_of is None

    @property
    def note(self) -> Note:
        """What the journal remembers of the hand-off."""
        return Note(self.seq, self.applied, self.duplicate_of, self.refused_because)

    @property
    def receipt(self) -> Receipt:
        """The recorder's word to the publisher."""
        if self.refused_because is not None:
            return Receipt(self.seq, ReceiptStatus.REFUSED, reason=self.refused_because)
        if self.duplicate_of is not None:
            return Receipt(self.seq, ReceiptStatus.DUPLICATE, duplicate_of=self.duplicate_of)
        return Receipt(self.seq, ReceiptStatus.RECORDED)


class Intake:
    """Gives each message its seq and judges it."""

    def __init__(self, settings: Settings, dedupe: DedupeWindow) -> None:
        self._settings, self._dedupe = settings, dedupe
        self._seqs = SeqSource(settings.node)

    def resume_after(self, last_seq: int) -> None:
        """Give only greater seqs than `last_seq`, whatever the clock says."""
        self._seqs = SeqSource(self._settings.node, after=last_seq)

    def take(self, message: Message) -> Incoming:
        """The message as it will be recorded. Bad input is refused, never raised."""
        stream, parsed = self.parse(message.topic, message.payload)
        seq = self._seqs.next()
        # Headers that begin like Manifold's own would say something that Manifold has not said.
        headers = {name: value for name, value in message.user_properties if not name.startswith(SERVICE_PREFIX)}
        incoming = Incoming(
            Envelope(seq, datetime.now(UTC), stream, message.topic, message.payload, message.qos, headers), message
        )
        match parsed:
            case Refused(reason):
                incoming.refused_because = reason
            case Data():
                incoming.data = parsed
            case Trigger():
                self._take_trigger(incoming, parsed, headers)
        incoming.envelope = replace(incoming.envelope, refused_because=incoming.refused_because)
        return incoming

    def take_outcome(self, payload: bytes) -> Incoming:
        """An outcome of the dispatchers as it will be recorded."""
        refused = None
        try:
            topic = f"{OUTCOMES}/{OutcomeRecord.from_wire(payload).vin}"
        except ValueError as exc:
            topic, refused = OUTCOMES, str(exc)
        envelope = Envelope(self._seqs.next(), datetime.now(UTC), Stream.OUTCOME, topic, payload, refused_because=refused)
        return Incoming(envelope, refused_because=refused)

    def read_back(self, envelope: Envelope) -> Incoming:
        """An envelope of the journal or the archive, to be offered again."""
        incoming = Incoming(envelope, digest=envelope.headers.get(DIGEST), applied=envelope.applied)
        incoming.duplicate_of, incoming.refused_because = envelope.duplicate_of, envelope.refused_because
        if not incoming.offerable or envelope.stream is Stream.OUTCOME:
            return incoming
        _, parsed = self.parse(envelope.topic, envelope.payload)
        match parsed:
            case Refused(reason):  # a limit was lowered since
                incoming.refused_because = reason
            case Data():
                incoming.data = parsed
            case Trigger():
                incoming.trigger = parsed
                incoming.digest = incoming.digest or trigger_digest(parsed.ids, parsed.request_id, parsed.data_id)
        return incoming

    def parse(self, topic: str, payload: bytes) -> tuple[Stream, Trigger | Data | Refused]:
        """The stream of a topic, and what its payload says."""
        settings = self._settings
        if topic == topics.TRIGGER:
            if len(payload) > settings.max_trigger_bytes:
                reason = f"trigger of {len(payload)} bytes is over max_trigger_bytes={settings.max_trigger_bytes}"
                return Stream.TRIGGER, Refused(f"{reason}; send several triggers or raise the setting")
            return Stream.TRIGGER, parse_trigger(payload, max_ids=settings.max_ids, max_data_bytes=settings.max_data_bytes)
        data_id = topics.data_id_of(topic)
        if data_id is not None:
            return Stream.DATA, parse_data(data_id, payload, max_data_bytes=settings.max_data_bytes)
        return Stream.TRIGGER, Refused(f"unknown topic {topic}; publish to {topics.TRIGGER} or {topics.DATA_PREFIX}<data_id>")

    def _take_trigger(self, incoming: Incoming, trigger: Trigger, headers: dict[str, str]) -> None:
        incoming.trigger = trigger
        incoming.digest = headers[DIGEST] = trigger_digest(trigger.ids, trigger.request_id, trigger.data_id)
        first = self._dedupe.first(incoming.digest, incoming.seq)
        if first != incoming.seq:
            incoming.duplicate_of = first
            headers[DUPLICATE_OF] = str(first)
