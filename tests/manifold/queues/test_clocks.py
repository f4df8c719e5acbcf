"""No clock skew lets an entry be overtaken while its publish may be under way: two drivers whose clocks differ by minutes."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.events import Connected, PresenceSign
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import seq_of, wall_clock_ms
from manifold.queues._drivers import BlockingBatch
from manifold.queues._policy import Policy
from manifold.queues.verbs import ecq
from manifold.queues.verbs.claims import Claim, ClaimWord, Park, Release, ReleaseReason, UpdatePresence
from manifold.queues.verbs.ends import Ack, End
from manifold.queues.verbs.fills import Enqueue
from manifold.queues.verbs.verb import Verb
from tests.manifold.queues.conftest import POLICY, seqs_of

VIN = Owner("VIN-1")
MINUTES = 300_000
FIRST, SECOND = (seq_of(wall_clock_ms() - 10_000 + n, 0, 0) for n in range(2))
HERE = replace(POLICY, presence_ms=10 * MINUTES)  # on every clock
SOON = replace(HERE, ack_deadline_ms=50, ack_deadline_max_ms=50)


class Driver:
    """A dispatcher's driver whose clock is wrong by this many milliseconds. Redis keeps its own time."""

    def __init__(self, redis: Redis, wrong_by: int, policy: Policy = HERE) -> None:
        self.redis, self.wrong_by, self.policy = redis, wrong_by, policy

    @property
    def now(self) -> int:
        return wall_clock_ms() + self.wrong_by

    def do(self, verb: Verb, queue: str = VIN) -> Any:
        batch = BlockingBatch(self.redis, self.policy)
        batch.add(queue, verb, self.now)
        (reply,) = batch.run()
        return reply

    def begin(self) -> None:
        """Connect the vehicle and put the first of two entries in flight by this driver."""
        self.do(UpdatePresence(Connected(VIN, wall_clock_ms() - 5_000, True, 0), claim=False))
        self.do(Enqueue([(FIRST, "r"), (SECOND, "r")]))
        assert self.do(Claim()).seq == FIRST


def let_go(of: Driver) -> None:
    """Reconnect the vehicle with a clean start, as this driver sees it."""
    assert of.do(UpdatePresence(Connected(VIN, of.now + MINUTES, True, 0), claim=False)).released == FIRST


def past_deadline(of: Driver) -> None:
    """Release after the deadline has passed by its clock, as the dispatcher does."""
    held = of.do(Claim())
    assert (held.word, held.seq) == (ClaimWord.BUSY, FIRST)
    assert held.deadline_ms < of.now
    assert of.do(Release(FIRST, ReleaseReason.DEADLINE)).word == "released"


@pytest.fixture(params=[-MINUTES, MINUTES], ids=["behind", "ahead"])
def other(redis: Redis, request: pytest.FixtureRequest) -> Driver:
    """Another replica, whose clock differs by minutes from that of the entry's holder."""
    Driver(redis, 0).begin()
    return Driver(redis, request.param)


def test_an_entry_does_not_fail_by_a_skewed_clock(other: Driver) -> None:
    let_go(other)

    failed = other.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.FAILED, other.now, attempts=1)))
    assert (failed.word, failed.next.word, failed.next.seq) == ("sent", ClaimWord.BUSY, FIRST)
    assert 0 < failed.next.deadline_ms - other.now <= POLICY.ack_deadline_ms, "the time of the next check by the caller's clock"


def test_an_entry_is_not_parked_by_a_skewed_clock(other: Driver) -> None:
    let_go(other)
    assert other.do(Claim()).seq == FIRST

    assert other.do(Park(FIRST, "d")).seq == FIRST
    assert seqs_of(other.redis, keys.parked(VIN)) == []


def test_an_entry_does_not_end_by_a_skewed_clock(other: Driver) -> None:
    let_go(other)

    ended = other.do(End((OutcomeRecord(VIN, FIRST, Outcome.CANCELLED, other.now),)))
    assert ended.outcomes == (None,)
    assert (ended.next.word, ended.next.seq) == (ClaimWord.BUSY, FIRST)


def test_a_deadline_passed_by_a_fast_clock_allows_no_overtaking(redis: Redis) -> None:
    Driver(redis, 0).begin()
    ahead = Driver(redis, MINUTES)
    past_deadline(ahead)

    assert ahead.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.FAILED, ahead.now, attempts=1))).word == "sent"
    assert ahead.do(Claim()).seq == FIRST


def test_a_correct_clock_waits_for_a_claim_by_a_slow_one(redis: Redis) -> None:
    Driver(redis, -MINUTES).begin()
    right = Driver(redis, 0)
    past_deadline(right)

    assert right.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.FAILED, right.now, attempts=1))).word == "sent"


def test_a_heartbeat_heard_by_a_fast_clock_allows_no_overtaking(redis: Redis) -> None:
    Driver(redis, 0).begin()
    ahead = Driver(redis, MINUTES)
    assert ahead.do(UpdatePresence(PresenceSign(), claim=False)).released == FIRST

    assert ahead.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.FAILED, ahead.now, attempts=1))).word == "sent"


def test_a_compacted_message_is_not_skipped_by_a_skewed_clock(redis: Redis) -> None:
    queue, first, ahead = ecq_queue(VIN), Driver(redis, 0), Driver(redis, MINUTES)
    first.do(UpdatePresence(Connected(VIN, wall_clock_ms() - 5_000, True, 0), claim=False))
    first.do(ecq.Append(FIRST, "a", b"1"), queue)
    first.do(ecq.Append(SECOND, "b", b"2"), queue)
    assert first.do(Claim(), queue).seq == FIRST
    ahead.do(Release(FIRST, ReleaseReason.DEADLINE), queue)

    assert ahead.do(ecq.Acknowledge(EcqAck(VIN, FIRST, ahead.now, passed_over=True)), queue).word == "sent"
    assert ahead.do(Claim(), queue).seq == FIRST


@pytest.mark.parametrize("wrong_by", [-MINUTES, 0, MINUTES], ids=["behind", "right", "ahead"])
def test_an_entry_fails_once_the_time_of_redis_has_passed(redis: Redis, wrong_by: int) -> None:
    Driver(redis, 0, SOON).begin()
    other = Driver(redis, wrong_by, SOON)
    send_by: Any = redis.hget(keys.inflight(VIN), "send_by")
    let_go(other)
    until(redis, int(send_by))

    failed = other.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.FAILED, other.now, attempts=1)))
    assert (failed.word, failed.next.seq) == ("ended", SECOND)


@pytest.mark.parametrize("let", [let_go, past_deadline], ids=["session", "deadline"])
def test_a_claim_of_an_older_dispatcher_version_is_waited_for_in_full(redis: Redis, let: Callable[[Driver], None]) -> None:
    old = Driver(redis, -MINUTES)
    old.begin()
    redis.hdel(keys.inflight(VIN), "send_by")  # not written by that version
    right = Driver(redis, 0)
    let(right)

    failed = right.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.FAILED, right.now, attempts=1)))
    assert (failed.word, failed.next.seq) == ("sent", FIRST)


def test_a_redis_clock_set_back_blocks_nothing_for_long(redis: Redis) -> None:
    driver = Driver(redis, 0)
    driver.begin()
    let_go(driver)
    redis.hset(keys.presence(VIN), "sent", f"{wall_clock_ms() + 100 * MINUTES}:{FIRST}")

    assert driver.do(Ack(OutcomeRecord(VIN, FIRST, Outcome.FAILED, driver.now, attempts=1))).word == "ended"


def until(redis: Redis, instant: int) -> None:
    """Wait until Redis' clock has passed that instant."""
    while True:
        seconds, micros = redis.time()
        if seconds * 1000 + micros // 1000 >= instant:
            return
        time.sleep(0.005)
