"""The kind of a message, which follows from its topic or, for a record of a dispatcher, from its payload."""

from contextlib import suppress

from manifold.contracts import topics
from manifold.contracts.ecq import ACKNOWLEDGEMENTS, EcqAck
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import OutcomeRecord


def stream_of(topic: str) -> Stream:
    """The stream that records messages on `topic`."""
    if topic.startswith(topics.ECQ_PREFIX):
        return Stream.ECQ
    if topic == topics.CAMPAIGN:
        return Stream.CAMPAIGN
    # Releases of campaigns, and messages on unknown topics, are recorded with the triggers.
    return Stream.DATA if topics.data_id_of(topic) is not None else Stream.TRIGGER


def needs_handoff(stream: str, topic: str) -> bool:
    """Whether messages of this stream and topic are enqueued.

    Outcomes and acknowledgements need no enqueue because they come from the queues. Of campaign orders only the brakes go to
    Redis, and `Brakes` hands them over. Answers concern only the campaigner.
    """
    if stream in (Stream.OUTCOME, Stream.CAMPAIGN, Stream.ANSWER):
        return False
    return not (stream == Stream.ECQ and topic.startswith(ACKNOWLEDGEMENTS))


def is_change(topic: str) -> bool:
    """Whether a message of the stream ecq is an acknowledgement or a rewind, and so changes which messages are acknowledged."""
    return topic.startswith((ACKNOWLEDGEMENTS, topics.ECQ_REWIND_PREFIX))


def parse_dispatcher_record(payload: bytes) -> OutcomeRecord | EcqAck:
    """Parse a record that a dispatcher has written to the outcomes stream in Redis.

    Raises:
        ValueError: it is neither an outcome nor an acknowledgement; the message says why.
    """
    if b'"client_id"' not in payload:  # every acknowledgement contains it
        return OutcomeRecord.from_wire(payload)
    try:
        return EcqAck.from_wire(payload)
    except ValueError:
        with suppress(ValueError):  # it may be an outcome whose reason contains "client_id"
            return OutcomeRecord.from_wire(payload)
        raise
