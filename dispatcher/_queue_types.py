"""How the queue types differ for a dispatcher: topics, acknowledgements, and what happens if an entry cannot be sent."""

from collections.abc import Sequence

from dispatcher import _outcomes
from dispatcher._events import Effect, Ignore, Missing, Unsendable, Verb, Withheld
from dispatcher._policy import DispatchPolicy
from manifold.contracts.ecq import EcqAck
from manifold.contracts.events import Acked, PresenceSign, Subscribed
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.queue_names import QueueName, ecq_queue, fanout_queue, is_ecq, owner_of_queue
from manifold.contracts.topics import ECQ, ecq_of, ecq_topic, request_of, request_topic, without_group
from manifold.queues.verbs.claims import Claim, MustEnd, Park, UpdatePresence
from manifold.queues.verbs.ecq import Acknowledge, Subscription
from manifold.queues.verbs.ends import Ack, End


def queue_of_topic(owner: str, topic: str) -> QueueName:
    """The name of the owner's queue to which a message on `topic`, or a subscription to it, belongs."""
    return ecq_queue(owner) if without_group(topic).startswith(f"{ECQ}/") else fanout_queue(owner)


def topic_of(policy: DispatchPolicy, queue: QueueName, name: str) -> str:
    """The topic of a message; `name` is its request id, or its key."""
    owner = owner_of_queue(queue)
    return ecq_topic(owner, name) if is_ecq(queue) else request_topic(policy.topic_prefix, owner, name)


def acked(policy: DispatchPolicy, queue: QueueName, event: Acked) -> Effect:
    """The effect of an acknowledgement. Only the vehicle that owns the topic ends an entry; others may be subscribed too."""
    owner = owner_of_queue(queue)
    to = ecq_of(event.topic) if is_ecq(queue) else request_of(policy.topic_prefix, event.topic)
    if event.seq is None or to is None or to[0] != owner:
        return Ignore("an acknowledgement of a message that is not its own")
    if is_ecq(queue):
        return Acknowledge(EcqAck(owner, event.seq, event.at_ms, reason=event.reason))
    record = OutcomeRecord(owner, event.seq, Outcome.DELIVERED, event.at_ms, event.published_ms, reason=event.reason)
    return Ack(record, to[1])


def subscribed(policy: DispatchPolicy, queue: QueueName, event: Subscribed) -> Effect:
    """The effect of a subscription. A compacted queue claims at once, a fanout queue if the settings say so."""
    if not policy.reaches(event.topic_filter, queue):
        return Ignore("a filter that gets none of its messages")
    if is_ecq(queue):
        return Subscription(event.qos if event.on else None, claim=event.on and event.qos > 0, at_ms=event.at_ms)
    return UpdatePresence(event, claim=event.on and policy.dispatch_on_subscribe)


def missing(queue: QueueName, event: Missing) -> Verb | None:
    """The effect if data is missing. An entry is parked; a compacted queue's message waits for its deadline (None)."""
    return None if is_ecq(queue) else Park(event.seq, event.data_id, event.claimed_ms)


def subscribed_since(queue: QueueName) -> Verb:
    """The effect if the broker had no subscriber for a publish, but the vehicle has been heard from since."""
    return Claim() if is_ecq(queue) else UpdatePresence(PresenceSign(), claim=True)


def failed(queue: QueueName, seq: int, attempts: int, now_ms: int) -> Verb:
    """The effect when the attempts of an entry are used up."""
    return _given_up(queue, seq, now_ms, f"not acknowledged after {attempts} attempts", attempts)


def unsendable(queue: QueueName, event: Unsendable) -> Verb:
    """The effect if the broker or the vehicle does not accept an entry's packet."""
    return _given_up(queue, event.seq, event.at_ms, event.why, None)


def withdrawn(queue: QueueName, event: Withheld, attempts: int) -> Verb:
    """The effect if an entry of a campaign must not be sent. It was published `attempts` times. No compacted queue has any."""
    return Ack(OutcomeRecord(queue, event.seq, Outcome.WITHDRAWN, event.at_ms, attempts=attempts, reason=event.why))


def forced(queue: QueueName, entries: Sequence[MustEnd], now_ms: int) -> Verb:
    """The verb that ends entries that may no longer be sent; only the first one in a compacted queue.

    The next claim of a compacted queue lists the rest.
    """
    if is_ecq(queue):
        return Acknowledge(_outcomes.expired(queue, entries[0], now_ms))
    return End(tuple(_outcomes.forced(queue, each, now_ms) for each in entries))


def _given_up(queue: QueueName, seq: int, at_ms: int, why: str, attempts: int | None) -> Verb:
    """The verb that gives up an entry. A compacted queue's message is passed over, and a rewind can bring it back."""
    if is_ecq(queue):
        return Acknowledge(EcqAck(owner_of_queue(queue), seq, at_ms, reason=why, passed_over=True))
    return Ack(OutcomeRecord(queue, seq, Outcome.FAILED, at_ms, attempts=attempts, reason=why))
