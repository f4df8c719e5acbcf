"""Decides on one event of one queue: the next state and the effects. Pure: no await, no clock, no Redis.

The durable state of an owner is in Redis, and each verb's reply reports it. `OwnerState` adds what only this process knows: its
open claim, from the claim until the broker's PUBACK.

Every event may be repeated, since the broker and the wake-up stream redeliver what was not acknowledged, and other replicas
handle other events of the same owner. So each effect names its seq, and Redis decides.
"""

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import _queue_types
from dispatcher._events import (
    Answered,
    DeadlinePassed,
    Effect,
    Event,
    Forward,
    Ignore,
    Load,
    Loaded,
    Missing,
    NotPublished,
    OfClaim,
    Publish,
    Published,
    PublishLost,
    Unsendable,
    Watch,
    Withheld,
    Woken,
)
from dispatcher._policy import DispatchPolicy
from manifold.contracts.events import Acked, Connected, DeliveryDropped, Disconnected, PresenceSign, Subscribed
from manifold.contracts.queue_names import QueueName, ecq_queue
from manifold.queues.verbs.claims import (
    Claim,
    ClaimReply,
    ClaimWord,
    Park,
    Release,
    ReleaseReason,
    ReleaseReply,
    UpdatePresence,
    UpdatePresenceReply,
)
from manifold.queues.verbs.ecq import Acknowledge, Subscription
from manifold.queues.verbs.ecq import AckReply as EcqAckReply
from manifold.queues.verbs.ends import Ack, AckReply, End, EndReply

NO_SUBSCRIBERS, FIRST_REFUSAL = 0x10, 0x80  # MQTT 5 reason codes of a PUBACK
SESSION_DESTROYED = frozenset({"discarded", "kicked"})  # disconnect reasons that end the session


class OpenClaim(Struct, frozen=True):
    """A claim of this process that the broker has not confirmed yet."""

    seq: int
    claimed_ms: int  # tells two claims of one seq apart
    send_by: int  # by `monotonic_ms`; the latest time to publish, for later attempts too (`note_sent` in _owner.lua)
    heard: bool = False  # the vehicle has been heard from since
    sent: bool = False  # handed to the publisher
    max_packet_bytes: int = 0  # the largest packet in bytes that the vehicle accepts; 0: no limit, or unknown
    attempts: int = 1  # with this claim

    def is_of(self, event: OfClaim) -> bool:
        """Whether `event` is about this claim."""
        return self.seq == event.seq and self.claimed_ms == event.claimed_ms


class OwnerState(Struct, frozen=True):
    """The input of `step`: the policy, the queue's name, and this process's open claim on it."""

    policy: DispatchPolicy
    queue: QueueName
    open_claim: OpenClaim | None = None

    def without(self, seq: int | None) -> "OwnerState":
        """The state with no open claim of `seq`."""
        return replace(self, open_claim=None) if self.open_claim is not None and self.open_claim.seq == seq else self


Step = tuple[OwnerState, list[Effect]]


def step(state: OwnerState, event: Event) -> Step:
    """Return the next state and the effects of `event`. Effects are carried out in order; at most one is a verb."""
    match event:
        case Answered():
            return _after_answer(state, event)
        case Acked():
            return state, [_queue_types.acked(state.policy, state.queue, event)]
        case Loaded() | Missing() | Published() | PublishLost() | NotPublished() | Unsendable() | Withheld():
            return _claim_event(state, event)
        case PresenceSign():
            return state, [UpdatePresence(event, claim=True)]
        case Woken(released=released, claim=claim):
            return state.without(released), [Claim()] if claim else []
        case DeadlinePassed():
            return state, [Claim()]
        case Connected():
            return state, [UpdatePresence(event, claim=state.policy.dispatch_on_connect)]
        case Disconnected():
            ended = event.reason in SESSION_DESTROYED
            return state, [UpdatePresence(replace(event, expiry_s=0) if ended else event, claim=False)]
        case Subscribed():
            return state, [_queue_types.subscribed(state.policy, state.queue, event)]
        case DeliveryDropped(seq=seq):
            return state, [Ignore("dropped message of another client") if seq is None else Release(seq, ReleaseReason.LOST)]


def _claim_event(state: OwnerState, event: OfClaim) -> Step:
    """Handle an event of a claim. An event of a claim that is no longer open is ignored."""
    claim = state.open_claim
    if claim is None or not claim.is_of(event):
        return state, [Ignore("event of a closed claim")]
    if isinstance(event, Loaded):
        return replace(state, open_claim=replace(claim, sent=True)), [Publish(event, claim.send_by, claim.max_packet_bytes)]
    empty = replace(state, open_claim=None)
    match event:
        case Missing():
            verb = _queue_types.missing(state.queue, event)
            return (state, [Ignore("data missing; retried at the deadline")]) if verb is None else (empty, [verb])
        case NotPublished(seq=seq):
            return empty, [Release(seq, ReleaseReason.UNSENT, event.claimed_ms, again=True)]
        case PublishLost(alone=True):
            return empty, [Ignore("suspected of breaking the connection; retried at the deadline")]
        case PublishLost(seq=seq):
            return empty, [Release(seq, ReleaseReason.CUT, event.claimed_ms, again=True)]
        case Unsendable():
            return empty, [_queue_types.unsendable(state.queue, event)]
        case Withheld():
            return empty, [_queue_types.withdrawn(state.queue, event, claim.attempts - 1)]
        case Published(seq=seq, reason_code=code) if code == NO_SUBSCRIBERS:
            return empty, [Release(seq, ReleaseReason.UNSUBSCRIBED, event.claimed_ms, again=claim.heard)]
        case Published(reason_code=code) if code >= FIRST_REFUSAL:
            return empty, [Ignore("rejected by the broker; retried at the deadline")]
    return empty, []


def _after_answer(state: OwnerState, answer: Answered) -> Step:
    """Continue after Redis has replied to a verb."""
    match answer.verb, answer.reply:
        case Ack() as ack, AckReply() as reply:
            return _after_claim(state.without(ack.record.seq), answer, reply.next)
        case Acknowledge() as ack, EcqAckReply() as reply:
            return _after_claim(state.without(ack.record.seq), answer, reply.next)
        case UpdatePresence() as update, UpdatePresenceReply() as reply:
            return _after_presence_update(state.without(reply.released), answer, update, reply)
        case End(), EndReply() as reply:
            return _after_claim(state, answer, reply.next)
        case Release() as release, ReleaseReply() as reply:
            return _after_release(state.without(release.seq), answer, release, reply)
        case Subscription(claim=claim), ClaimReply() as reply:
            return _after_claim(_mark_heard(state, reply) if claim else state, answer, reply)
        case ((Claim() | Park()), ClaimReply() as reply):
            return _after_claim(state, answer, reply)
    raise TypeError(f"{answer.reply!r} is not an answer to {answer.verb!r}")


def _after_presence_update(state: OwnerState, answer: Answered, update: UpdatePresence, reply: UpdatePresenceReply) -> Step:
    state, effects = _after_fanout_presence_update(state, answer, update, reply)
    if reply.ecq_wake or reply.ecq_released is not None:
        effects.append(Forward(ecq_queue(state.queue), Woken(reply.ecq_released, claim=reply.ecq_wake)))
    return state, effects


def _after_fanout_presence_update(
    state: OwnerState, answer: Answered, update: UpdatePresence, reply: UpdatePresenceReply
) -> Step:
    if isinstance(update.seen, Connected) and not update.seen.clean_start and reply.next.word is ClaimWord.NONE:
        # An entry in flight got a full deadline from here, and its check may have been postponed until the session's end.
        return state, [Watch(answer.now_ms + state.policy.wait_ms(1))]
    return _after_claim(_mark_heard(state, reply.next) if update.claim else state, answer, reply.next)


def _mark_heard(state: OwnerState, claim: ClaimReply) -> OwnerState:
    """Note on the open claim that the vehicle was heard from, which shows that it may be subscribed."""
    open_claim = state.open_claim
    if open_claim is None or claim.word is not ClaimWord.BUSY or claim.seq != open_claim.seq:
        return state
    return replace(state, open_claim=replace(open_claim, heard=True))


def _after_release(state: OwnerState, answer: Answered, release: Release, reply: ReleaseReply) -> Step:
    if reply.word == "early":
        return state, [Watch(reply.deadline_ms)]
    if reply.word == "stale":
        claims_again = release.reason in (ReleaseReason.DEADLINE, ReleaseReason.UNSENT)  # what is in flight now may be overdue
        return state, [Claim() if claims_again else Ignore("released too late: it is not in flight")]
    if release.reason is ReleaseReason.DEADLINE and state.policy.used_up(reply.attempts):
        return state, [_queue_types.failed(state.queue, release.seq, reply.attempts, answer.now_ms)]
    if release.reason is ReleaseReason.UNSUBSCRIBED and (release.again or reply.resubscribed):
        return state, [_queue_types.subscribed_since(state.queue)]  # heard from since the claim: it may have subscribed
    return state, [Claim()] if release.again else []


def _after_claim(state: OwnerState, answer: Answered, claim: ClaimReply) -> Step:
    """The effects of a claim. An entry already in flight is watched, too, so a repeated event restores a missing watch."""
    policy = state.policy
    if claim.word is ClaimWord.CLAIMED or _was_mine(state, answer, claim):
        if policy.used_up(claim.attempts - 1):
            return state, [_queue_types.failed(state.queue, claim.seq, claim.attempts - 1, answer.now_ms)]
        recheck_at = policy.recheck_at_ms(state.queue, claim.seq, claim.attempts, claim.deadline_ms)
        # Redis counts from the execution of the claim, so its own `send_by` is later.
        send_by, sent = answer.asked_at + policy.wait_ms(1), bool(claim.message)
        open_claim = OpenClaim(
            claim.seq, answer.now_ms, send_by, sent=sent, max_packet_bytes=claim.max_packet_bytes, attempts=claim.attempts
        )
        if claim.message:
            key, _, payload = claim.message.partition(b"\0")
            found = Loaded(claim.seq, answer.now_ms, key.decode(errors="replace"), "", payload)
            return replace(state, open_claim=open_claim), [Watch(recheck_at), Publish(found, send_by, claim.max_packet_bytes)]
        return replace(state, open_claim=open_claim), [Watch(recheck_at), Load(claim.seq, answer.now_ms)]
    if claim.word is ClaimWord.MUST_END:
        return state, [_queue_types.forced(state.queue, claim.must_end, answer.now_ms)]
    if claim.word is not ClaimWord.BUSY:
        return state, []
    if claim.deadline_ms <= answer.now_ms:
        return state, [_overdue(state, claim.seq)]
    return state, [Watch(policy.recheck_at_ms(state.queue, claim.seq, claim.attempts, claim.deadline_ms))]


def _overdue(state: OwnerState, seq: int) -> Release:
    """Release an overdue entry; one that this process is still loading was never published, so it counts no attempt."""
    open_claim = state.open_claim
    if open_claim is not None and open_claim.seq == seq and not open_claim.sent:
        return Release(seq, ReleaseReason.UNSENT, open_claim.claimed_ms, again=True)
    return Release(seq, ReleaseReason.DEADLINE, again=True)


def _was_mine(state: OwnerState, answer: Answered, claim: ClaimReply) -> bool:
    """Whether this verb's first sending made the claim and only its reply was lost; the deadline shows it."""
    mine = claim.word is ClaimWord.BUSY and claim.deadline_ms == answer.now_ms + state.policy.wait_ms(claim.attempts)
    return answer.repeated and mine and (state.open_claim is None or state.open_claim.seq != claim.seq)
