"""The differences between the queue types for a dispatcher.

They differ in topics, in acknowledgements, and in what happens if an entry cannot be sent.
"""

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
    """The name of the owner's queue to which a message on `topic`, or a subscription to this topic, belongs."""
    return ecq_queue(owner) if without_group(topic).startswith(f"{ECQ}/") else fanout_queue(owner)


def topic_of(policy: DispatchPolicy, queue: QueueName, name: str) -> str:
    """The topic on which a message is published; `name` is its request id or, in a compacted queue, its key."""
    owner = owner_of_queue(queue)
    return ecq_topic(owner, name) if is_ecq(queue) else request_topic(policy.topic_prefix, owner, name)


def effect_of_ack(policy: DispatchPolicy, queue: QueueName, event: Acked) -> Effect:
    """The effect of an acknowledgement by this vehicle: the entry ends.

    The acknowledgement is ignored if Manifold did not publish the message (it has no seq), or if the topic is that of another
    owner, to which the vehicle is subscribed as well.
    """
    owner = owner_of_queue(queue)
    addressee = ecq_of(event.topic) if is_ecq(queue) else request_of(policy.topic_prefix, event.topic)
    if event.seq is None or addressee is None or addressee[0] != owner:
        return Ignore("an acknowledgement of a message that is not its own")
    if is_ecq(queue):
        return Acknowledge(EcqAck(owner, event.seq, event.at_ms, reason=event.reason))
    _, request_id = addressee
    record = OutcomeRecord(owner, event.seq, Outcome.DELIVERED, event.at_ms, event.published_ms, reason=event.reason)
    return Ack(record, request_id)


def effect_of_subscription(policy: DispatchPolicy, queue: QueueName, event: Subscribed) -> Effect:
    """The effect of a subscription, or of its end, which claims nothing.

    After a subscription, a fanout queue claims if the settings say so. A compacted queue claims unless the QoS is 0, with which a
    delivery is never acknowledged.
    """
    if not policy.reaches(event.topic_filter, queue):
        return Ignore("a filter that gets none of its messages")
    if is_ecq(queue):
        qos = event.qos if event.on else None
        return Subscription(qos, claim=event.on and event.qos > 0, at_ms=event.at_ms)
    return UpdatePresence(event, claim=event.on and policy.dispatch_on_subscribe)


def effect_of_missing_data(queue: QueueName, event: Missing) -> Verb | None:
    """The effect if the data of an entry is missing: the entry is parked.

    None for a compacted queue, which cannot park: its message stays in flight, and is tried again at the deadline.
    """
    return None if is_ecq(queue) else Park(event.seq, event.data_id, event.claimed_ms)


def effect_of_late_subscription(queue: QueueName) -> Verb:
    """The effect if the broker had no subscriber for a publish, but the vehicle has sent a sign of life since the claim.

    The vehicle may be subscribed now, so claim again. In a fanout queue, the release may have marked the vehicle as unsubscribed,
    which would prevent the claim; the sign of presence removes that mark.
    """
    return Claim() if is_ecq(queue) else UpdatePresence(PresenceSign(), claim=True)


def effect_of_failure(queue: QueueName, seq: int, attempts: int, now_ms: int) -> Verb:
    """The effect when the attempts of an entry are used up."""
    return _give_up(queue, seq, now_ms, f"not acknowledged after {attempts} attempts", attempts)


def effect_of_unsendable(queue: QueueName, event: Unsendable) -> Verb:
    """The effect if the broker or the vehicle does not accept an entry's packet."""
    return _give_up(queue, event.seq, event.at_ms, event.why, attempts=None)


def effect_of_withholding(queue: QueueName, event: Withheld, attempts: int) -> Verb:
    """The effect if an entry of a campaign, which was published `attempts` times, must not be sent.

    Compacted queues have no entries of campaigns.
    """
    return Ack(OutcomeRecord(queue, event.seq, Outcome.WITHDRAWN, event.at_ms, attempts=attempts, reason=event.why))


def effect_of_must_end(queue: QueueName, entries: Sequence[MustEnd], now_ms: int) -> Verb:
    """The verb that ends entries that may no longer be sent.

    In a compacted queue, it ends only the first of them; the next claim lists the others again.
    """
    if is_ecq(queue):
        return Acknowledge(_outcomes.expiry_record(queue, entries[0], now_ms))
    return End(tuple(_outcomes.forced_outcome(queue, entry, now_ms) for entry in entries))


def _give_up(queue: QueueName, seq: int, at_ms: int, why: str, attempts: int | None) -> Verb:
    """The verb that gives up an entry. A compacted queue's message is passed over, and a rewind can bring it back."""
    if is_ecq(queue):
        return Acknowledge(EcqAck(owner_of_queue(queue), seq, at_ms, reason=why, passed_over=True))
    return Ack(OutcomeRecord(queue, seq, Outcome.FAILED, at_ms, attempts=attempts, reason=why))
