"""The demo's campaign: two waves with a gate between them, a pause and a resume, judged by what the vehicles received."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from manifold.contracts import campaigns as r
from manifold.contracts.messages import sha1_hex
from manifold.contracts.names import Owner
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet
from manifold.sandbox.fleet import vins as make_vins
from manifold.sandbox.platform.programs import programs
from manifold.settings import Settings

CANARIES, HERE, AWAY = 10, 30, 10
TARGETS = HERE + AWAY
WAIT_S, LOOK_S = 120.0, 0.2
AUTHOR, APPROVER = "demo-author", "demo-approver"


@dataclass(slots=True)
class Seen:
    """How many vehicles had got the campaign's data, and when."""

    state: str = ""
    seconds: float = 0.0
    canaries: int = 0  # when the first wave was held at its gate
    early: int = 0  # of the second wave by then
    probed: int = 0  # vehicles that came during the pause and got another batch
    paused: int = 0  # of them, those that got the campaign's
    once: int = 0  # targets that got it exactly once by its end
    falsifications: int = 0


def has_a_campaigner(settings: Settings) -> bool:
    """Whether the platform carries out campaigns; its setting may be off."""
    return any(program.kind == "campaigner" for program in programs(settings))


async def play_campaign(settings: Settings, platform: Publisher, run: str) -> Seen:
    """Propose, approve, hold, pass, pause, resume and complete a campaign for a fleet of its own."""
    name, seen, began = f"demo-{run}", Seen(), time.monotonic()
    vins = make_vins(TARGETS, seed=int(run) + 1)
    canaries, here, away = vins[:CANARIES], vins[:HERE], vins[HERE:]
    user = settings.mqtt_username_campaigns
    async with Fleet(settings, vins, seed=int(run) + 1) as fleet, Publisher(settings, user) as orders:
        await fleet.connect(here)
        await platform.data(f"data-{name}", b"map")
        await orders.order(r.Propose(name, AUTHOR, plan=_plan(name, vins, canaries)))
        await orders.order(r.Approve(name, APPROVER))

        await _wait(fleet, lambda: _count_receivers(fleet, name, canaries) == CANARIES)
        await _state(settings, name, "held")
        seen.canaries, seen.early = _count_receivers(fleet, name, canaries), _count_receivers(fleet, name, vins[CANARIES:])

        await orders.order(r.Approve(name, APPROVER, wave=0))
        await _wait(fleet, lambda: _count_receivers(fleet, name, here) == HERE)

        await orders.order(r.Pause(name, APPROVER, why="the demo pauses it"))
        await fleet.connect(away)
        probe = f"probe-{name}"
        await platform.data(sha1_hex(b"probe"), b"probe")
        await platform.trigger(away, probe, sha1_hex(b"probe"))
        await _wait(fleet, lambda: _count_receivers(fleet, probe, away) == AWAY)
        seen.probed, seen.paused = _count_receivers(fleet, probe, away), _count_receivers(fleet, name, away)

        await orders.order(r.Resume(name, APPROVER))
        seen.state = await _state(settings, name, "completed")
        copies = _copies(fleet, name)
        seen.once = sum(copies[vin] == 1 for vin in vins)
    seen.falsifications = await asyncio.to_thread(_falsifications, settings, name)
    seen.seconds = time.monotonic() - began
    return seen


def _plan(name: str, vins: list[Owner], canaries: list[Owner]) -> dict[str, Any]:
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    waves = [
        {"name": "canary", "vins": list(canaries), "gate": {"success": "100%", "approve": 1}},
        {"name": "rest", "size": "rest"},
    ]
    return {"campaign": name, "data_id": f"data-{name}", "targets": {"vins": list(vins)}, "waves": waves, "ends": ends}


async def _wait(fleet: Fleet, arrived: Callable[[], bool]) -> None:
    with contextlib.suppress(TimeoutError):  # the check reports what is missing
        await fleet.wait_for(lambda _: arrived(), WAIT_S)


async def _state(settings: Settings, name: str, wanted: str) -> str:
    """Wait until the campaign is in this state; returns the one in which it is at last."""
    from manifold.campaigns.record import read_campaigns

    state, deadline = "", time.monotonic() + WAIT_S
    while state != wanted and time.monotonic() < deadline:
        known = await asyncio.to_thread(read_campaigns, settings, [name])
        state = str(known[name].decided.stage) if name in known else ""
        await asyncio.sleep(LOOK_S)
    return state


def _falsifications(settings: Settings, name: str) -> int:
    from manifold.campaigns.record import read_facts
    from manifold.campaigns.verification import verify

    return len(verify(read_facts(settings, name)))


def _copies(fleet: Fleet, request_id: str) -> Counter[Owner]:
    return Counter(message.vin for message in fleet.received if message.request_id == request_id and not message.dup)


def _count_receivers(fleet: Fleet, request_id: str, vins: Iterable[Owner]) -> int:
    return len(_copies(fleet, request_id).keys() & set(vins))
