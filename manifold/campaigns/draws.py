"""Plays one draw of the fleet through a plan, event by event: when how many targets are delivered."""

import heapq
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from itertools import count
from typing import NamedTuple

from manifold.campaigns.gates import holds
from manifold.campaigns.plan import Plan
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.step import Policy
from manifold.campaigns.windows import Window, is_sent, span_at

NEVER_MS = 1 << 62  # when a vehicle comes that was not seen at all

Arrival = tuple[int, int | None, str, int]  # a wave, when its targets are here first (None: never), their zone, how many
Delivery = tuple[int, int]  # when (Unix ms), how many


class _Event(IntEnum):
    """What happens at an instant, in the order in which the campaigner would see it."""

    ACKNOWLEDGED = 0
    WITHDRAWN = 1  # the window has ended before they came: they wait for the next one
    SOAKED = 2  # the gate passes, if its conditions have held all the time
    READY = 3  # targets are here and their window is open
    FREE = 4  # the rate allows a release again


class _Group(NamedTuple):
    """Targets of one wave and zone that come at one instant. Groups are released in their order."""

    since: int  # the number of the event that withdrew them; -1: they wait from the beginning
    wave: int
    place: int  # in the draw
    zone: str
    number: int
    comes_ms: int


class Draw:
    """One draw of the fleet, played event by event: when how many targets are delivered."""

    def __init__(self, plan: Plan, arrivals: Iterable[Arrival], policy: Policy, now_ms: int, ack_ms: int) -> None:
        self._plan, self._ack_ms, self._ends_ms = plan, ack_ms, plan.ends_ms
        self._openings = _Openings(plan.window, policy, self._ends_ms)
        self._waves: list[list[_Group]] = [[] for _ in plan.waves]
        for place, (wave, at_ms, zone, number) in enumerate(arrivals):
            self._waves[wave].append(_Group(-1, wave, place, zone, number, NEVER_MS if at_ms is None else at_ms))
        self._counts = [
            {"targets": sum(group.number for group in wave), "released": 0, "known": 0, "success": 0} for wave in self._waves
        ]
        self._events: list[tuple[int, _Event, int, _Group]] = []
        self._numbers = count()  # of events: what happens at one instant keeps its order
        self._ready: list[_Group] = []  # a heap
        self._recent, self._spent, self._free_ms = deque[Delivery](), 0, 0  # the releases of the last 60 s, and their sum
        self._successes, self._deliveries = 0, list[Delivery]()
        self._open(0, max(now_ms, plan.starts_ms))

    def play(self) -> list[Delivery]:
        """All deliveries before the plan's end, oldest first."""
        while self._events:
            now_ms = self._events[0][0]
            while self._events and self._events[0][0] == now_ms:
                _, event, number, group = heapq.heappop(self._events)
                self._handle(now_ms, event, number, group)
            self._drain(now_ms)
        return self._deliveries

    def _handle(self, at_ms: int, event: _Event, number: int, group: _Group) -> None:
        counts = self._counts[group.wave]
        match event:
            case _Event.READY:
                heapq.heappush(self._ready, group)
            case _Event.ACKNOWLEDGED:
                self._deliveries.append((at_ms, group.number))
                self._successes += group.number
                counts["known"] += group.number
                counts["success"] += group.number
                self._judge(at_ms)
            case _Event.WITHDRAWN:
                counts["released"] -= group.number
                self._push(self._openings.next(group.zone, at_ms), _Event.READY, group._replace(since=number))
                self._judge(at_ms)
            case _Event.SOAKED if group.wave == self._open_wave and at_ms == self._held_since + self._soak_ms:
                self._open(group.wave + 1, at_ms)

    def _open(self, wave: int, now_ms: int) -> None:
        self._open_wave, self._held_since = wave, 0
        self._soak_ms = duration_ms(self._plan.waves[wave].gate.soak)
        for group in self._waves[wave]:
            ready_ms = now_ms if self._plan.away == "queue" else max(group.comes_ms, now_ms)
            if ready_ms < self._ends_ms:
                self._push(self._openings.next(group.zone, ready_ms), _Event.READY, group)

    def _drain(self, now_ms: int) -> None:
        """Release targets that are ready, as many as the rate has; those that were withdrawn go last."""
        while self._recent and self._recent[0][0] <= now_ms - MINUTE_MS:
            self._spent -= self._recent.popleft()[1]
        allowed = self._plan.per_minute(self._successes) - self._spent
        while self._ready and allowed > 0:
            group = heapq.heappop(self._ready)
            open_ms = self._openings.next(group.zone, now_ms)
            if open_ms > now_ms:
                self._push(open_ms, _Event.READY, group)
                continue
            taken = group._replace(number=min(group.number, allowed))
            if taken.number < group.number:
                heapq.heappush(self._ready, group._replace(number=group.number - taken.number))
            allowed -= taken.number
            self._release(taken, now_ms)
        if self._ready and self._recent and self._free_ms <= now_ms:
            self._free_ms = self._recent[0][0] + MINUTE_MS
            self._push(self._free_ms, _Event.FREE, self._ready[0])

    def _release(self, group: _Group, now_ms: int) -> None:
        number = group.number
        if self._recent and self._recent[-1][0] == now_ms:
            self._recent[-1] = (now_ms, self._recent[-1][1] + number)
        else:
            self._recent.append((now_ms, number))
        self._spent += number
        self._counts[group.wave]["released"] += number
        comes_ms, until_ms = max(now_ms, group.comes_ms), self._openings.until_ms(group.zone)
        if is_sent(comes_ms, until_ms):
            self._push(comes_ms + self._ack_ms, _Event.ACKNOWLEDGED, group)
        elif until_ms is not None:
            self._push(until_ms, _Event.WITHDRAWN, group)
        self._judge(now_ms)

    def _judge(self, now_ms: int) -> None:
        """Note since when the conditions of the gate hold: a release may break them until it is acknowledged."""
        wave = self._open_wave
        if wave + 1 == len(self._waves):
            return
        if not holds(self._plan.waves[wave].gate, self._counts[wave]):
            self._held_since = 0
        elif not self._held_since:
            self._held_since = now_ms
            self._push(now_ms + self._soak_ms, _Event.SOAKED, self._waves[wave][0])

    def _push(self, at_ms: int, event: _Event, group: _Group) -> None:
        if at_ms < self._ends_ms:
            heapq.heappush(self._events, (at_ms, event, next(self._numbers), group))


class _Openings:
    """The instants at which a zone's window allows a release; what was found last for each zone is remembered."""

    def __init__(self, window: Window | None, policy: Policy, ends_ms: int) -> None:
        self._window, self._policy, self._ends_ms = window, policy, ends_ms
        # By zone: from when on no release is allowed, from when on one is, and until when.
        self._spans: dict[str, tuple[int, int, int]] = {}

    def next(self, zone: str, at_ms: int) -> int:
        """The first instant from `at_ms` on at which a release is allowed; one after the plan's end, if there is none."""
        if self._window is None:
            return at_ms
        closed_ms, open_ms, last_ms = self._spans.get(zone, (at_ms, at_ms, at_ms - 1))
        if closed_ms <= at_ms <= last_ms:
            return max(at_ms, open_ms)
        closed_ms = at_ms
        while at_ms < self._ends_ms:
            span = span_at(self._window, zone, at_ms)
            last_ms = span.until_ms - self._policy.ack_deadline_ms
            if span.is_open and at_ms <= last_ms:
                self._spans[zone] = closed_ms, at_ms, last_ms
                break
            at_ms = span.until_ms
        return at_ms

    def until_ms(self, zone: str) -> int | None:
        """When the window ends in which `next` found an instant last for this zone; None: there is no window."""
        return None if self._window is None else self._spans[zone][2] + self._policy.ack_deadline_ms
