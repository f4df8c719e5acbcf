"""Plays one random draw of the fleet through a plan, event by event, and returns when targets are delivered."""

import heapq
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from itertools import count
from typing import NamedTuple

from manifold.campaigns.gates import is_met
from manifold.campaigns.plan import Plan
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.step import Policy
from manifold.campaigns.windows import Window, is_sent, span_at

NEVER_MS = 1 << 62  # the arrival time of a vehicle that never connects

# Targets of one wave that connect together: the wave, when they first connect (Unix ms; None: never), their zone, how many.
Arrival = tuple[int, int | None, str, int]
Delivery = tuple[int, int]  # when (Unix ms), how many targets


class _Event(IntEnum):
    """A kind of event. Events of the same instant are handled in this order, which is that of the campaigner."""

    ACKNOWLEDGED = 0
    WITHDRAWN = 1  # the window ended before the targets connected, so they wait for the next window
    SOAKED = 2  # the soak ends: the gate passes if its conditions have held without a break
    READY = 3  # targets are connected and their window is open
    RATE_ALLOWS = 4  # the rate allows a release again


class _Group(NamedTuple):
    """Targets of one wave and zone that connect at the same instant. Groups sort in the order in which they are released."""

    withdrawn_by: int  # the number of the event that withdrew the group; -1 if it was never withdrawn
    wave: int
    rank: int  # the position in the draw
    zone: str
    size: int  # how many targets
    comes_ms: int  # when they connect


class Draw:
    """One draw of the fleet, played event by event. `ack_ms` is the time from a delivery to its acknowledgement."""

    def __init__(self, plan: Plan, arrivals: Iterable[Arrival], policy: Policy, now_ms: int, ack_ms: int) -> None:
        self._plan = plan
        self._ack_ms = ack_ms
        self._ends_ms = plan.ends_ms
        self._windows = _Windows(plan.window, policy, self._ends_ms)
        self._groups: list[list[_Group]] = [[] for _ in plan.waves]  # by wave
        for rank, (wave, at_ms, zone, size) in enumerate(arrivals):
            comes_ms = NEVER_MS if at_ms is None else at_ms
            self._groups[wave].append(_Group(-1, wave, rank, zone, size, comes_ms))
        self._counts = [
            {"targets": sum(group.size for group in groups), "released": 0, "known": 0, "success": 0} for groups in self._groups
        ]
        self._events: list[tuple[int, _Event, int, _Group]] = []  # a heap: when, which kind, event number, its targets
        self._event_numbers = count()  # events of one kind at one instant keep the order in which they were pushed
        self._ready: list[_Group] = []  # a heap of groups that wait for the rate alone
        self._recent = deque[tuple[int, int]]()  # the releases of the last 60 s: when (Unix ms), how many targets
        self._released_in_minute = 0  # the number of targets in `_recent`
        self._rate_allows_ms = 0  # the time of the last RATE_ALLOWS event that was pushed
        self._successes = 0
        self._deliveries: list[Delivery] = []
        self._open_wave = 0
        self._met_since_ms: int | None = None  # since when the gate of the open wave is met; None: it is not met
        self._soak_ms = 0  # the soak of the open wave's gate
        self._open(0, max(now_ms, plan.starts_ms))

    def play(self) -> list[Delivery]:
        """Return all deliveries before the plan's end, oldest first."""
        while self._events:
            now_ms = self._events[0][0]
            while self._events and self._events[0][0] == now_ms:
                _, event, number, group = heapq.heappop(self._events)
                self._handle(now_ms, event, number, group)
            self._release_ready(now_ms)
        return self._deliveries

    def _handle(self, at_ms: int, event: _Event, number: int, group: _Group) -> None:
        """Update the state after the event with this number. After all events of an instant, `play` releases ready targets."""
        counts = self._counts[group.wave]
        match event:
            case _Event.READY:
                heapq.heappush(self._ready, group)
            case _Event.ACKNOWLEDGED:
                self._deliveries.append((at_ms, group.size))
                self._successes += group.size
                counts["known"] += group.size
                counts["success"] += group.size
                self._update_gate(at_ms)
            case _Event.WITHDRAWN:
                counts["released"] -= group.size
                ready_ms = self._windows.next(group.zone, at_ms)
                self._push(ready_ms, _Event.READY, group._replace(withdrawn_by=number))
                self._update_gate(at_ms)
            case _Event.SOAKED:
                # If the conditions of the gate broke meanwhile, this soak does not count, and another one may have begun since.
                began_ms = at_ms - self._soak_ms
                if group.wave == self._open_wave and self._met_since_ms == began_ms:
                    self._open(group.wave + 1, at_ms)
            case _Event.RATE_ALLOWS:  # nothing changes, but `play` releases targets at this instant
                pass

    def _open(self, wave: int, now_ms: int) -> None:
        """Open a wave: from now on its targets become ready as they connect."""
        self._open_wave = wave
        self._met_since_ms = None
        self._soak_ms = duration_ms(self._plan.waves[wave].gate.soak)
        for group in self._groups[wave]:
            ready_ms = now_ms if self._plan.away == "queue" else max(group.comes_ms, now_ms)
            if ready_ms < self._ends_ms:
                self._push(self._windows.next(group.zone, ready_ms), _Event.READY, group)

    def _release_ready(self, now_ms: int) -> None:
        """Release ready targets, as many as the rate allows. Targets that were withdrawn before are released last."""
        while self._recent and self._recent[0][0] <= now_ms - MINUTE_MS:
            _, number = self._recent.popleft()
            self._released_in_minute -= number
        allowed = self._plan.per_minute(self._successes) - self._released_in_minute
        while self._ready and allowed > 0:
            group = heapq.heappop(self._ready)
            open_ms = self._windows.next(group.zone, now_ms)
            if open_ms > now_ms:  # while the group waited for the rate, its window has ended
                self._push(open_ms, _Event.READY, group)
                continue
            released = group._replace(size=min(group.size, allowed))
            if released.size < group.size:
                remainder = group._replace(size=group.size - released.size)
                heapq.heappush(self._ready, remainder)
            allowed -= released.size
            self._release(released, now_ms)
        is_event_pending = self._rate_allows_ms > now_ms
        if self._ready and self._recent and not is_event_pending:
            oldest_ms, _ = self._recent[0]
            self._rate_allows_ms = oldest_ms + MINUTE_MS
            self._push(self._rate_allows_ms, _Event.RATE_ALLOWS, self._ready[0])

    def _release(self, group: _Group, now_ms: int) -> None:
        """Count the release of a group for the rate and the gate, and schedule how it ends: acknowledged, or withdrawn."""
        if self._recent and self._recent[-1][0] == now_ms:
            _, released_now = self._recent[-1]
            self._recent[-1] = (now_ms, released_now + group.size)
        else:
            self._recent.append((now_ms, group.size))
        self._released_in_minute += group.size
        self._counts[group.wave]["released"] += group.size
        comes_ms = max(now_ms, group.comes_ms)
        until_ms = self._windows.until_ms(group.zone)
        if is_sent(comes_ms, until_ms):
            self._push(comes_ms + self._ack_ms, _Event.ACKNOWLEDGED, group)
        elif until_ms is not None:  # without a window every group is sent
            self._push(until_ms, _Event.WITHDRAWN, group)
        self._update_gate(now_ms)

    def _update_gate(self, now_ms: int) -> None:
        """Update since when the gate of the open wave is met, and schedule the end of its soak if that begins now.

        A release may break the conditions of the gate until it is acknowledged.
        """
        wave = self._open_wave
        if wave + 1 == len(self._groups):  # the last wave has no gate to pass
            return
        if not is_met(self._plan.waves[wave].gate, self._counts[wave]):
            self._met_since_ms = None
        elif self._met_since_ms is None:
            self._met_since_ms = now_ms
            any_group = self._groups[wave][0]  # the event needs only its wave
            self._push(now_ms + self._soak_ms, _Event.SOAKED, any_group)

    def _push(self, at_ms: int, event: _Event, group: _Group) -> None:
        """Schedule an event for a group, unless the plan has ended by then."""
        if at_ms < self._ends_ms:
            heapq.heappush(self._events, (at_ms, event, next(self._event_numbers), group))


class _Opening(NamedTuple):
    """When releases to a zone are allowed: from `open_from_ms` to `last_ms`, both inclusive (Unix ms)."""

    closed_from_ms: int  # no release is allowed from this instant until `open_from_ms`
    open_from_ms: int
    last_ms: int  # a later release could not be acknowledged before the window ends


class _Windows:
    """The instants at which the window allows a release in each zone."""

    def __init__(self, window: Window | None, policy: Policy, ends_ms: int) -> None:
        self._window = window
        self._policy = policy
        self._ends_ms = ends_ms
        self._last_openings: dict[str, _Opening] = {}  # zone → the opening that `next` found last

    def next(self, zone: str, at_ms: int) -> int:
        """Return the first instant at or after `at_ms` at which a release is allowed (Unix ms).

        If no release is allowed before the plan's end, the result is at or after that end.
        """
        if self._window is None:
            return at_ms
        known = self._last_openings.get(zone)
        if known is not None and known.closed_from_ms <= at_ms <= known.last_ms:
            return max(at_ms, known.open_from_ms)
        candidate_ms = at_ms
        while candidate_ms < self._ends_ms:
            span = span_at(self._window, zone, candidate_ms)
            last_ms = span.until_ms - self._policy.ack_deadline_ms
            if span.is_open and candidate_ms <= last_ms:
                self._last_openings[zone] = _Opening(at_ms, candidate_ms, last_ms)
                return candidate_ms
            candidate_ms = span.until_ms  # closed, or too late to be acknowledged: try the next change of the window
        return candidate_ms

    def until_ms(self, zone: str) -> int | None:
        """Return when the window ends that `next` found last for this zone (Unix ms), or None if the plan has no window."""
        if self._window is None:
            return None
        return self._last_openings[zone].last_ms + self._policy.ack_deadline_ms
