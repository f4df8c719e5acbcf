"""Decides on one event of one queue: the next state and the effects. Pure: no await, no clock, no Redis.

The durable state of an owner is in Redis, and the reply to each verb reports a part of it. `OwnerState` adds what only this
process knows: its open claim, from the claim until the broker's PUBACK.

Every event may be repeated, because the broker and the wake-up stream redeliver unacknowledged messages. Other replicas handle
other events of the same owner. So each effect names the seq that it concerns, and Redis decides whether it still applies.
"""

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import _queue_types
from dispatcher._events import (
    Answered,
    ClaimEvent,
    DeadlinePassed,
    Effect,
    Event,
    Forward,
    Ignore,
    Load,
    Loaded,
    Missing,
    NotPublished,
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
    claimed_ms: int  # time of the claim, which distinguishes two claims of one seq
    # Latest time to publish, by `monotonic_ms`: the time of the claim plus the ack deadline of a first attempt, whichever attempt
    # this is. `note_sent` in _owner.lua says why.
    send_by: int
    heard: bool = False  # whether the vehicle has sent a sign of life since the claim
    sent: bool = False  # whether the entry was handed to the publisher
    max_packet_bytes: int = 0  # the largest packet in bytes that the vehicle accepts; 0: no limit, or unknown
    attempts: int = 1  # number of attempts, including this claim

    def is_of(self, event: ClaimEvent) -> bool:
        """Whether `event` is about this claim."""
        return self.seq == event.seq and self.claimed_ms == event.claimed_ms


class OwnerState(Struct, frozen=True):
    """The input of `step`: the policy, the queue's name, and this process's open claim on it."""

    policy: DispatchPolicy
    queue: QueueName
    open_claim: OpenClaim | None = None

    def without_claim_of(self, seq: int | None) -> "OwnerState":
        """The state with the claim of `seq` closed, if that claim is the open one; None closes no claim."""
        if self.open_claim is None or self.open_claim.seq != seq:
            return self
        return replace(self, open_claim=None)


Step = tuple[OwnerState, list[Effect]]


def step(state: OwnerState, event: Event) -> Step:
    """Return the next state and the effects of `event`. The effects are carried out in order; at most one of them is a verb."""
    match event:
        case Answered():
            return _after_answer(state, event)
        case Acked():
            return state, [_queue_types.effect_of_ack(state.policy, state.queue, event)]
        case Loaded() | Missing() | Published() | PublishLost() | NotPublished() | Unsendable() | Withheld():
            return _claim_event(state, event)
        case PresenceSign():
            return state, [UpdatePresence(event, claim=True)]
        case Woken(released=released, claim=claim):
            return state.without_claim_of(released), [Claim()] if claim else []
        case DeadlinePassed():
            return state, [Claim()]
        case Connected():
            return state, [UpdatePresence(event, claim=state.policy.dispatch_on_connect)]
        case Disconnected():
            if event.reason in SESSION_DESTROYED:
                event = replace(event, expiry_s=0)
            return state, [UpdatePresence(event, claim=False)]
        case Subscribed():
            return state, [_queue_types.effect_of_subscription(state.policy, state.queue, event)]
        case DeliveryDropped(seq=seq):
            if seq is None:
                return state, [Ignore("dropped message of another client")]
            return state, [Release(seq, ReleaseReason.LOST)]


def _claim_event(state: OwnerState, event: ClaimEvent) -> Step:
    """Handle an event of a claim. An event of a claim that is no longer open is ignored."""
    claim = state.open_claim
    if claim is None or not claim.is_of(event):
        return state, [Ignore("event of a closed claim")]
    if isinstance(event, Loaded):
        sent_claim = replace(claim, sent=True)
        return replace(state, open_claim=sent_claim), [Publish(event, claim.send_by, claim.max_packet_bytes)]
    closed = replace(state, open_claim=None)  # every other event closes the claim, with one exception
    match event:
        case Missing():
            verb = _queue_types.effect_of_missing_data(state.queue, event)
            if verb is None:  # the exception: the claim stays open until the deadline
                return state, [Ignore("data missing; retried at the deadline")]
            return closed, [verb]
        case NotPublished(seq=seq):
            return closed, [Release(seq, ReleaseReason.UNSENT, event.claimed_ms, then_claim=True)]
        case PublishLost(alone=True):
            return closed, [Ignore("suspected of breaking the connection; retried at the deadline")]
        case PublishLost(seq=seq):
            return closed, [Release(seq, ReleaseReason.CUT, event.claimed_ms, then_claim=True)]
        case Unsendable():
            return closed, [_queue_types.effect_of_unsendable(state.queue, event)]
        case Withheld():
            earlier_attempts = claim.attempts - 1
            return closed, [_queue_types.effect_of_withholding(state.queue, event, earlier_attempts)]
        case Published(seq=seq, reason_code=code) if code == NO_SUBSCRIBERS:
            return closed, [Release(seq, ReleaseReason.UNSUBSCRIBED, event.claimed_ms, then_claim=claim.heard)]
        case Published(reason_code=code) if code >= FIRST_REFUSAL:
            return closed, [Ignore("rejected by the broker; retried at the deadline")]
    return closed, []  # published


def _after_answer(state: OwnerState, answer: Answered) -> Step:
    """Handle the reply of Redis to a verb."""
    match answer.verb, answer.reply:
        case Ack() as ack, AckReply() as reply:
            return _after_claim(state.without_claim_of(ack.record.seq), answer, reply.next)
        case Acknowledge() as ack, EcqAckReply() as reply:
            return _after_claim(state.without_claim_of(ack.record.seq), answer, reply.next)
        case UpdatePresence() as update, UpdatePresenceReply() as reply:
            return _after_presence_update(state.without_claim_of(reply.released), answer, update, reply)
        case End(), EndReply() as reply:
            return _after_claim(state, answer, reply.next)
        case Release() as release, ReleaseReply() as reply:
            return _after_release(state.without_claim_of(release.seq), answer, release, reply)
        case Subscription(claim=claim), ClaimReply() as reply:
            if claim:
                state = _mark_heard(state, reply)
            return _after_claim(state, answer, reply)
        case ((Claim() | Park()), ClaimReply() as reply):
            return _after_claim(state, answer, reply)
    raise TypeError(f"{answer.reply!r} is not an answer to {answer.verb!r}")


def _after_presence_update(state: OwnerState, answer: Answered, update: UpdatePresence, reply: UpdatePresenceReply) -> Step:
    """Continue in the fanout queue, and wake the vehicle's compacted queue if the update concerns that queue as well."""
    state, effects = _after_fanout_presence_update(state, answer, update, reply)
    if reply.ecq_wake or reply.ecq_released is not None:
        effects.append(Forward(ecq_queue(state.queue), Woken(reply.ecq_released, claim=reply.ecq_wake)))
    return state, effects


def _after_fanout_presence_update(
    state: OwnerState, answer: Answered, update: UpdatePresence, reply: UpdatePresenceReply
) -> Step:
    """Continue with the claim that the update has made. If it made none, nothing follows, except after a resumed session."""
    if isinstance(update.event, Connected) and not update.event.clean_start and reply.next.word is ClaimWord.NONE:
        # Nothing was claimed, so no reply BUSY tells the deadline of an entry that may be in flight. The resumed session has
        # given it a new, full deadline, and its next check may be scheduled only for the end of the session: add an earlier one.
        return state, [Watch(answer.now_ms + state.policy.wait_ms(1))]
    if update.claim:
        state = _mark_heard(state, reply.next)
    return _after_claim(state, answer, reply.next)


def _mark_heard(state: OwnerState, claim: ClaimReply) -> OwnerState:
    """Note on the open claim, if its entry is in flight, that the vehicle has sent a sign of life and so may be subscribed."""
    open_claim = state.open_claim
    if open_claim is None or claim.word is not ClaimWord.BUSY or claim.seq != open_claim.seq:
        return state
    return replace(state, open_claim=replace(open_claim, heard=True))


def _after_release(state: OwnerState, answer: Answered, release: Release, reply: ReleaseReply) -> Step:
    """The effects of the reply to a release: usually, to claim again if the release has `then_claim`.

    `early` says that the deadline has not passed, or was just extended; `stale`, that the claim is no longer in flight.
    """
    if reply.word == "early":
        return state, [Watch(reply.deadline_ms)]
    if reply.word == "stale":
        if release.reason in (ReleaseReason.DEADLINE, ReleaseReason.UNSENT):
            return state, [Claim()]  # whose reply says whether the entry that is in flight now is overdue
        return state, [Ignore("released too late: it is not in flight")]
    if release.reason is ReleaseReason.DEADLINE and state.policy.are_used_up(reply.attempts):
        return state, [_queue_types.effect_of_failure(state.queue, release.seq, reply.attempts, answer.now_ms)]
    if release.reason is ReleaseReason.UNSUBSCRIBED and (release.then_claim or reply.resubscribed):
        # Since the claim, the vehicle has subscribed or sent a sign of life, so it may be subscribed now.
        return state, [_queue_types.effect_of_late_subscription(state.queue)]
    return state, [Claim()] if release.then_claim else []


def _after_claim(state: OwnerState, answer: Answered, claim: ClaimReply) -> Step:
    """The effects of the reply to a claim.

    If an entry is in flight already, its deadline is watched again, because a process may have died before it wrote the watch.
    """
    if claim.word is ClaimWord.CLAIMED or _was_claimed_before(state, answer, claim):
        return _after_claimed(state, answer, claim)
    if claim.word is ClaimWord.MUST_END:
        return state, [_queue_types.effect_of_must_end(state.queue, claim.must_end, answer.now_ms)]
    if claim.word is not ClaimWord.BUSY:  # there is nothing to send, or the vehicle cannot receive it now
        return state, []
    if claim.deadline_ms <= answer.now_ms:
        return state, [_release_overdue(state, claim.seq)]
    recheck_at = state.policy.recheck_at_ms(state.queue, claim.seq, claim.attempts, claim.deadline_ms)
    return state, [Watch(recheck_at)]


def _after_claimed(state: OwnerState, answer: Answered, claim: ClaimReply) -> Step:
    """Open the claim of an entry, and publish it, or load it first. If its attempts are used up, it ends instead."""
    policy = state.policy
    earlier_attempts = claim.attempts - 1
    if policy.are_used_up(earlier_attempts):
        return state, [_queue_types.effect_of_failure(state.queue, claim.seq, earlier_attempts, answer.now_ms)]
    recheck_at = policy.recheck_at_ms(state.queue, claim.seq, claim.attempts, claim.deadline_ms)
    # Earlier than the `send_by` in Redis, which counts from the execution of the claim. So Redis never assumes too early
    # that this process no longer publishes the entry.
    send_by = answer.asked_at + policy.wait_ms(1)
    has_message = bool(claim.message)  # a small message of a compacted queue
    if has_message:
        key, _, payload = claim.message.partition(b"\0")
        loaded = Loaded(claim.seq, answer.now_ms, key.decode(errors="replace"), "", payload)
        next_effect: Effect = Publish(loaded, send_by, claim.max_packet_bytes)
    else:
        next_effect = Load(claim.seq, answer.now_ms)
    open_claim = OpenClaim(
        claim.seq,
        answer.now_ms,
        send_by,
        sent=has_message,
        max_packet_bytes=claim.max_packet_bytes,
        attempts=claim.attempts,
    )
    return replace(state, open_claim=open_claim), [Watch(recheck_at), next_effect]


def _release_overdue(state: OwnerState, seq: int) -> Release:
    """The release of an overdue entry.

    If this process is still loading the entry, it was never published, so the release counts no attempt.
    """
    open_claim = state.open_claim
    if open_claim is not None and open_claim.seq == seq and not open_claim.sent:
        return Release(seq, ReleaseReason.UNSENT, open_claim.claimed_ms, then_claim=True)
    return Release(seq, ReleaseReason.DEADLINE, then_claim=True)


def _was_claimed_before(state: OwnerState, answer: Answered, claim: ClaimReply) -> bool:
    """Whether this verb made the claim when it was sent the first time, and the reply was lost.

    The deadline shows that, because a repeated verb has the same time.
    """
    if not answer.repeated or claim.word is not ClaimWord.BUSY:
        return False
    has_its_deadline = claim.deadline_ms == answer.now_ms + state.policy.wait_ms(claim.attempts)
    is_open = state.open_claim is not None and state.open_claim.seq == claim.seq  # its reply was not lost
    return has_its_deadline and not is_open
