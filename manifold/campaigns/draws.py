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
from manifold.campaigns.windows import Window, span_at

NEVER_MS = 1 << 62  # when a vehicle comes that was not seen at all

Arrival = tuple[int, int | None, str, int]  # a wave, when its targets are here first (None: never), their zone, how many
Delivery = tuple[int, int]  # when (Unix ms), how many


class _Event(IntEnum):
    """What happens at an instant, in the order in which the campaigner would see it."""

    ACKNOWLEDGED = 0
    SOAKED = 1  # the gate passes, if its conditions have held all the time
    READY = 2  # targets are here and their window is open
    FREE = 3  # the rate allows a release again


class _Group(NamedTuple):
    """Targets of one zone that come at one instant."""

    zone: str
    number: int
    comes_ms: int


_NOBODY = _Group("", 0, 0)


class Draw:
    """One draw of the fleet, played event by event: when how many targets are delivered."""

    def __init__(self, plan: Plan, arrivals: Iterable[Arrival], policy: Policy, now_ms: int, ack_ms: int) -> None:
        self._plan, self._ack_ms = plan, ack_ms
        self._openings = _Openings(plan.window, policy, plan.ends_ms)
        self._waves: list[list[tuple[int | None, str, int]]] = [[] for _ in plan.waves]
        for wave, at_ms, zone, number in arrivals:
            self._waves[wave].append((at_ms, zone, number))
        self._counts = [
            {"targets": sum(number for *_, number in wave), "released": 0, "known": 0, "success": 0} for wave in self._waves
        ]
        self._events: list[tuple[int, _Event, int, int, _Group]] = []
        self._numbers = count()  # of events: what happens at one instant keeps its order
        self._ready = [deque[_Group]() for _ in plan.waves]
        self._recent, self._spent, self._free_ms = deque[Delivery](), 0, 0  # the releases of the last 60 s, and their sum
        self._successes, self._deliveries = 0, list[Delivery]()
        self._open(0, max(now_ms, plan.starts_ms))

    def play(self) -> list[Delivery]:
        """All deliveries before the plan's end, oldest first."""
        while self._events and self._events[0][0] < self._plan.ends_ms:
            now_ms = self._events[0][0]
            while self._events and self._events[0][0] == now_ms:
                at_ms, event, wave, _, group = heapq.heappop(self._events)
                self._handle(at_ms, event, wave, group)
            self._drain(now_ms)
        return self._deliveries

    def _handle(self, at_ms: int, event: _Event, wave: int, group: _Group) -> None:
        match event:
            case _Event.READY:
                self._ready[wave].append(group)
            case _Event.ACKNOWLEDGED:
                self._deliveries.append((at_ms, group.number))
                self._successes += group.number
                self._counts[wave]["known"] += group.number
                self._counts[wave]["success"] += group.number
                self._judge(at_ms)
            case _Event.SOAKED if wave == self._open_wave and at_ms == self._held_since + self._soak_ms:
                self._open(wave + 1, at_ms)

    def _open(self, wave: int, now_ms: int) -> None:
        self._open_wave, self._held_since = wave, 0
        self._soak_ms = duration_ms(self._plan.waves[wave].gate.soak)
        for at_ms, zone, number in self._waves[wave]:
            comes_ms = NEVER_MS if at_ms is None else max(at_ms, now_ms)
            ready_ms = now_ms if self._plan.away == "queue" else comes_ms
            if ready_ms < self._plan.ends_ms:
                self._push(self._openings.next(zone, ready_ms), _Event.READY, wave, _Group(zone, number, comes_ms))

    def _drain(self, now_ms: int) -> None:
        """Release targets that are ready, as many as the rate has; those of earlier waves go first."""
        while self._recent and self._recent[0][0] <= now_ms - MINUTE_MS:
            self._spent -= self._recent.popleft()[1]
        allowed = self._plan.per_minute(self._successes) - self._spent
        for wave, ready in enumerate(self._ready[: self._open_wave + 1]):
            while ready and allowed > 0:
                group = ready.popleft()
                open_ms = self._openings.next(group.zone, now_ms)
                if open_ms > now_ms:
                    self._push(open_ms, _Event.READY, wave, group)
                    continue
                taken = group._replace(number=min(group.number, allowed))
                if taken.number < group.number:
                    ready.appendleft(group._replace(number=group.number - taken.number))
                allowed -= taken.number
                self._release(wave, taken, now_ms)
        if any(self._ready) and self._recent and self._free_ms <= now_ms:
            self._free_ms = self._recent[0][0] + MINUTE_MS
            self._push(self._free_ms, _Event.FREE)

    def _release(self, wave: int, group: _Group, now_ms: int) -> None:
        number = group.number
        if self._recent and self._recent[-1][0] == now_ms:
            self._recent[-1] = (now_ms, self._recent[-1][1] + number)
        else:
            self._recent.append((now_ms, number))
        self._spent += number
        self._counts[wave]["released"] += number
        self._push(max(now_ms, group.comes_ms) + self._ack_ms, _Event.ACKNOWLEDGED, wave, group)
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
            self._push(now_ms + self._soak_ms, _Event.SOAKED, wave)

    def _push(self, at_ms: int, event: _Event, wave: int = 0, group: _Group | None = None) -> None:
        heapq.heappush(self._events, (at_ms, event, wave, next(self._numbers), group or _NOBODY))


class _Openings:
    """The instants at which a zone's window allows a release; the last span of each zone is remembered."""

    def __init__(self, window: Window | None, policy: Policy, ends_ms: int) -> None:
        self._window, self._policy, self._ends_ms = window, policy, ends_ms
        self._spans: dict[str, tuple[int, int]] = {}

    def next(self, zone: str, at_ms: int) -> int:
        """The first instant from `at_ms` on at which a release is allowed; one after the plan's end, if there is none."""
        start, last = self._spans.get(zone, (at_ms, at_ms - 1))
        if self._window is None or start <= at_ms <= last:
            return at_ms
        while at_ms < self._ends_ms:
            span = span_at(self._window, zone, at_ms)
            last = span.until_ms - self._policy.ack_deadline_ms
            if span.is_open and at_ms <= last:
                self._spans[zone] = (at_ms, last)
                break
            at_ms = span.until_ms
        return at_ms
