"""The verbs that put entries in flight, note what vehicles do, and let entries go back."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from contracts import keys
from contracts.events import Connected, Disconnected, Heard, Subscribed
from contracts.outcomes import OF_CODE, Outcome
from queues._policy import Policy
from queues._scripts import OF_ECQ, Args, Script
from queues.verbs.verb import Verb, number


class ClaimWord(StrEnum):
    """How an attempt to put the next entry in flight went."""

    CLAIMED = "claimed"  # it is in flight now: publish it
    BUSY = "busy"  # another entry is in flight
    IDLE = "idle"  # nothing is pending
    ABSENT = "absent"  # the vehicle is not here
    UNSUBSCRIBED = "unsubscribed"  # the vehicle is here and does not listen
    MUST_END = "must_end"  # the oldest entries must not be sent any more: end them first
    NONE = "none"  # no claim was asked for


_WORDS = {word.value.encode(): word for word in ClaimWord}


class MustEnd(NamedTuple):
    """A pending entry that has to end, and how."""

    seq: int
    outcome: Outcome
    attempts: int


class ClaimReply(NamedTuple):
    """`seq`, `attempts` and `deadline_ms` are those of the entry in flight; 0 where none is.

    `message` is what a compacted queue sends (key, NUL, payload), where it is small; empty: it is to be read by itself.
    """

    word: ClaimWord
    seq: int = 0
    attempts: int = 0
    deadline_ms: int = 0
    must_end: tuple[MustEnd, ...] = ()
    message: bytes = b""

    @property
    def next(self) -> "ClaimReply":
        """The claim that was made with the verb, as every reply has it."""
        return self


_ECQ_OF_PRESENCE = (
    0,
    1,
    6,
    5,
    3,
)  # of `ecq_keys`: pending, inflight, attempts, messages, keys, as update_presence.lua takes them
_NOTHING = ClaimReply(ClaimWord.NONE)


class Claim(Verb, frozen=True):
    """Put the oldest pending entry in flight, if the vehicle is here and nothing is."""

    script = Script("claim")
    ecq_script = Script("claim", shares=OF_ECQ)

    @staticmethod
    def read(raw: Any) -> ClaimReply:
        """What `claim` in _owner.lua, or in _ecq.lua, returns."""
        word = _WORDS[raw[0]]
        if word is ClaimWord.CLAIMED or word is ClaimWord.BUSY:
            return ClaimReply(word, int(raw[1]), int(raw[2]), int(raw[3]), message=raw[4] if len(raw) > 4 else b"")
        if word is ClaimWord.MUST_END:
            triples = zip(raw[1::3], raw[2::3], raw[3::3], strict=True)
            return ClaimReply(
                word, must_end=tuple(MustEnd(int(seq), OF_CODE[int(how)], int(tried)) for seq, how, tried in triples)
            )
        return ClaimReply(word)


class UpdatePresenceReply(NamedTuple):
    """`word` is `noted` or `stale`; `released` is the seq that went back to pending.

    `ecq_released` is that of the vehicle's compacted queue; `ecq_wake` says that there is something to claim from it now, or that
    what it has in flight got a new deadline.
    """

    word: str
    released: int | None
    next: ClaimReply
    ecq_released: int | None = None
    ecq_wake: bool = False


class UpdatePresence(Verb, frozen=True):
    """Note what was seen of the vehicle's connection; with `claim`, claim from its fanout queue in the same breath.

    A connection with a clean start, or after its session has expired, releases what was in flight.
    """

    seen: Heard | Connected | Disconnected | Subscribed
    claim: bool
    script = Script("update_presence")

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        others = tuple(keys.ecq_keys(owner)[place] for place in _ECQ_OF_PRESENCE)
        return self._call(policy, owner, now_ms, "1" if self.claim else "0", *self._sign(), others=others)

    def _sign(self) -> Args:
        match self.seen:
            case Heard():
                return ("heard",)
            case Connected(at_ms=at, clean_start=clean, expiry_s=expiry):
                return "connected", at, "1" if clean else "0", expiry
            case Disconnected(connected_at_ms=began, at_ms=at, expiry_s=expiry):
                return "disconnected", began, at, "" if expiry is None else expiry
            case Subscribed(on=on):
                return ("subscribed" if on else "unsubscribed",)

    @staticmethod
    def read(raw: Any) -> UpdatePresenceReply:
        return UpdatePresenceReply(raw[0].decode(), number(raw[1]), Claim.read(raw[4:]), number(raw[2]), raw[3] == b"1")


class ReleaseReason(StrEnum):
    """Why an entry goes back to pending."""

    DEADLINE = "deadline"  # the vehicle did not acknowledge in time
    UNSUBSCRIBED = "unsubscribed"  # the broker had nobody to give it to; no attempt is counted
    LOST = "lost"  # the session that held it is gone
    CUT = "cut"  # the connection broke before the broker confirmed it; no attempt is counted, since others may have cut it off
    UNSENT = "unsent"  # it was never given to the broker; no attempt is counted


class ReleaseReply(NamedTuple):
    """`word` is `released`, `early` (then `deadline_ms` is when to try again) or `stale`. A release claims nothing."""

    word: str
    attempts: int = 0
    deadline_ms: int = 0

    @property
    def next(self) -> ClaimReply:
        """Nothing."""
        return _NOTHING


class Release(Verb, frozen=True):
    """Put `seq` back to pending, if it is still what is in flight. `again` is for whoever gets the answer: try to claim then."""

    seq: int
    reason: ReleaseReason
    claimed_ms: int | None = None  # of the one claim that is meant; None: whichever is in flight
    again: bool = False
    script = Script("release")
    ecq_script = Script("release", shares=OF_ECQ)

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        return self._call(policy, owner, now_ms, self.seq, self.reason.value, "" if self.claimed_ms is None else self.claimed_ms)

    @staticmethod
    def read(raw: Any) -> ReleaseReply:
        word = raw[0].decode()
        if word == "released":
            return ReleaseReply(word, attempts=int(raw[1]))
        return ReleaseReply(word, deadline_ms=int(raw[1])) if word == "early" else ReleaseReply(word)


class Park(Verb, frozen=True):
    """Let `seq` step aside until `data_id` comes, and claim the next one; NONE where it was neither in flight nor parked already.

    BUSY with this very seq: an earlier publish of it may be under way, so it is pending again, and nothing was parked or claimed.
    Noted as waiting before and after: an arrival between the two notes may have struck the first one out. A note goes with the
    retention, as the entry does.
    """

    seq: int
    data_id: str
    claimed_ms: int | None = (
        None  # of the one claim that is meant: of a newer one the data may have come; None: whichever is in flight
    )
    script = Script("park")

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        return self._call(policy, owner, now_ms, self.seq, "" if self.claimed_ms is None else self.claimed_ms)

    def notes(self, policy: Policy, owner: str, now_ms: int) -> Sequence[Args]:
        """What is noted before and after."""
        key = keys.waiting_for(self.data_id)
        note, lasts = ("SADD", key, f"{owner} {self.seq}"), ("PEXPIRE", key, policy.retention_ms)
        return note, lasts, ("ZADD", keys.PARKED, now_ms, self.data_id)

    @staticmethod
    def read(raw: Any) -> ClaimReply:
        return Claim.read(raw[1:])
