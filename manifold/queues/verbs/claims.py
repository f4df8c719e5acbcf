"""Verbs that put entries in flight, update presence, and put entries back to pending."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from manifold.contracts import keys
from manifold.contracts.events import Connected, Disconnected, PresenceSign, Subscribed
from manifold.contracts.outcomes import OF_CODE, Outcome
from manifold.queues._policy import Policy
from manifold.queues._scripts import ECQ_SHARED_CODE, Args, Script
from manifold.queues.verbs.verb import Verb, number


class ClaimWord(StrEnum):
    """The result of claiming the next entry."""

    CLAIMED = "claimed"  # now in flight: publish it
    BUSY = "busy"  # another entry is in flight
    IDLE = "idle"  # nothing is pending
    ABSENT = "absent"  # the vehicle is not present
    UNSUBSCRIBED = "unsubscribed"  # the vehicle is present but not subscribed
    MUST_END = "must_end"  # the oldest entries may no longer be sent: end them first
    NONE = "none"  # no claim was requested


_WORDS = {word.value.encode(): word for word in ClaimWord}


class MustEnd(NamedTuple):
    """A pending entry that must end with this outcome."""

    seq: int
    outcome: Outcome
    attempts: int


class ClaimReply(NamedTuple):
    """The result of a claim. `seq`, `attempts` and `deadline_ms` (Unix ms) describe the entry in flight; 0 if there is none.

    `message` is a claimed message of a compacted queue (key, NUL, payload) if the message is small; if it is empty, the message
    must be read separately. If an entry was claimed, `max_packet_bytes` is the largest packet that the vehicle accepts; 0: no
    limit, or unknown.
    """

    word: ClaimWord
    seq: int = 0
    attempts: int = 0
    deadline_ms: int = 0
    must_end: tuple[MustEnd, ...] = ()
    message: bytes = b""
    max_packet_bytes: int = 0

    @property
    def next(self) -> "ClaimReply":
        """The claim that the verb made; every reply has this property, and here it is the reply itself."""
        return self


# Indices in `ecq_keys` of the keys that update_presence.lua takes: pending, inflight, attempts, messages and keys.
_ECQ_KEY_INDICES = (0, 1, 6, 5, 3)
_NO_CLAIM = ClaimReply(ClaimWord.NONE)


class Claim(Verb, frozen=True):
    """Put the oldest pending entry in flight, if the vehicle is present and nothing is in flight."""

    script = Script("claim")
    ecq_script = Script("claim", prepends=ECQ_SHARED_CODE)

    @staticmethod
    def read(raw: Any) -> ClaimReply:
        """Parse the reply of `claim` in _owner.lua or _ecq.lua."""
        word, *fields = raw
        claim_word = _WORDS[word]
        if claim_word is ClaimWord.CLAIMED:
            seq, attempts, deadline_ms, message, max_packet_bytes = fields
            max_bytes = int(max_packet_bytes or 0)  # empty if there is no limit
            return ClaimReply(claim_word, int(seq), int(attempts), int(deadline_ms), message=message, max_packet_bytes=max_bytes)
        if claim_word is ClaimWord.BUSY:
            seq, attempts, deadline_ms = fields
            return ClaimReply(claim_word, int(seq), int(attempts), int(deadline_ms))
        if claim_word is ClaimWord.MUST_END:
            triples = zip(fields[0::3], fields[1::3], fields[2::3], strict=True)
            entries = (MustEnd(int(seq), OF_CODE[int(code)], int(attempts)) for seq, code, attempts in triples)
            return ClaimReply(claim_word, must_end=tuple(entries))
        return ClaimReply(claim_word)


class UpdatePresenceReply(NamedTuple):
    """`word` is `noted`, or `stale` if the event is of an old connection. `released` is the seq that is pending again, or None.

    `ecq_released` is the same for the vehicle's compacted queue. `ecq_wake` says that the compacted queue has something to claim,
    or that its entry in flight has a new deadline.
    """

    word: str
    released: int | None
    next: ClaimReply
    ecq_released: int | None = None
    ecq_wake: bool = False


class UpdatePresence(Verb, frozen=True):
    """Update the vehicle's presence from an event; with `claim`, also claim from its fanout queue.

    A clean start, or a connection after the session has expired, puts the entry in flight back to pending.
    """

    event: PresenceSign | Connected | Disconnected | Subscribed
    claim: bool
    script = Script("update_presence")

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        ecq_keys = keys.ecq_keys(owner)
        others = tuple(ecq_keys[index] for index in _ECQ_KEY_INDICES)
        return self._call(policy, owner, now_ms, "1" if self.claim else "0", *self._event_args(), others=others)

    def _event_args(self) -> Args:
        """The event's name and its own arguments, as update_presence.lua takes them."""
        match self.event:
            case PresenceSign():
                return ("heard",)
            case Connected() as event:
                clean_start = "1" if event.clean_start else "0"
                max_packet_bytes = "" if event.max_packet_bytes is None else event.max_packet_bytes
                return "connected", event.at_ms, clean_start, event.expiry_s, max_packet_bytes
            case Disconnected() as event:
                expiry_s = "" if event.expiry_s is None else event.expiry_s
                return "disconnected", event.connected_at_ms, event.at_ms, expiry_s
            case Subscribed() as event:
                return ("subscribed" if event.on else "unsubscribed",)

    @staticmethod
    def read(raw: Any) -> UpdatePresenceReply:
        word, released, ecq_released, ecq_wake, *claim = raw
        return UpdatePresenceReply(word.decode(), number(released), Claim.read(claim), number(ecq_released), ecq_wake == b"1")


class ReleaseReason(StrEnum):
    """Why a claim is released, so that its entry is pending again. Not the release of a campaign."""

    DEADLINE = "deadline"  # the vehicle did not acknowledge in time
    UNSUBSCRIBED = "unsubscribed"  # the broker had no subscriber; not counted as an attempt
    LOST = "lost"  # the session to which the broker delivered the entry has ended
    CUT = "cut"  # the connection broke before the PUBACK; not counted as an attempt, since another publish may have caused it
    UNSENT = "unsent"  # the entry was never handed to the broker; not counted as an attempt


class ReleaseReply(NamedTuple):
    """The result of a release.

    `word` is `released`, `early` (the deadline, now `deadline_ms`, has not passed) or `stale` (the claim is not in flight).
    """

    word: str
    attempts: int = 0
    deadline_ms: int = 0
    resubscribed: bool = False  # whether the vehicle has subscribed, or sent a sign of life, since the claim

    @property
    def next(self) -> ClaimReply:
        """A reply without a claim, because a release claims nothing."""
        return _NO_CLAIM


class Release(Verb, frozen=True):
    """Release the claim of `seq`: put the entry back to pending if it is still in flight.

    `then_claim` says that the receiver of the reply should claim next; the script does not use it.
    """

    seq: int
    reason: ReleaseReason
    claimed_ms: int | None = None  # time of the claim to release; None: any claim of `seq` that is in flight
    then_claim: bool = False
    script = Script("release")
    ecq_script = Script("release", prepends=ECQ_SHARED_CODE)

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        claimed_ms = "" if self.claimed_ms is None else self.claimed_ms
        return self._call(policy, owner, now_ms, self.seq, self.reason.value, claimed_ms)

    @staticmethod
    def read(raw: Any) -> ReleaseReply:
        word = raw[0].decode()
        if word == "released":
            return ReleaseReply(word, attempts=int(raw[1]), resubscribed=raw[2] == b"1")
        if word == "early":
            return ReleaseReply(word, deadline_ms=int(raw[1]))
        return ReleaseReply(word)


class Park(Verb, frozen=True):
    """Park the entry `seq` until `data_id` arrives, and claim the next entry.

    The reply is that of the next claim, with two exceptions. It is NONE if `seq` is neither in flight nor parked. It is BUSY with
    `seq` itself if an earlier publish of the entry may still be under way: the entry is then pending again, and nothing was
    parked or claimed.

    A note says which data a parked entry waits for. It is written before and after parking, because data that arrives between the
    two removes the first note. A note expires with the retention.
    """

    seq: int
    data_id: str
    # Time of the claim to park; None: any claim of `seq` that is in flight. A newer claim may have found the data.
    claimed_ms: int | None = None
    script = Script("park")

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        claimed_ms = "" if self.claimed_ms is None else self.claimed_ms
        return self._call(policy, owner, now_ms, self.seq, claimed_ms)

    def notes(self, policy: Policy, owner: str, now_ms: int) -> Sequence[Args]:
        """The commands that write the note."""
        key = keys.waiting_for(self.data_id)
        return (
            ("SADD", key, f"{owner} {self.seq}"),
            ("PEXPIRE", key, policy.retention_ms),
            ("ZADD", keys.PARKED, now_ms, self.data_id),
        )

    @staticmethod
    def read(raw: Any) -> ClaimReply:
        _, *claim = raw  # the first item is the script's word, such as `parked`
        return Claim.read(claim)
