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

CANARIES, ONLINE, LATER = 10, 30, 10  # targets in the first wave; targets online from the start; targets that connect later
TARGETS = ONLINE + LATER
WAIT_S, POLL_S = 120.0, 0.2
AUTHOR, APPROVER = "demo-author", "demo-approver"


@dataclass(slots=True)
class Seen:
    """How many vehicles had received the campaign's data at each step of the demo."""

    state: str = ""  # of the campaign, at the end
    seconds: float = 0.0
    canaries: int = 0  # vehicles of the first wave, when the campaign was held at the gate
    early: int = 0  # vehicles of the second wave, at the same time
    probed: int = 0  # vehicles that connected during the pause and received another batch
    paused: int = 0  # vehicles that connected during the pause and received the campaign's data
    once: int = 0  # targets that had received the data exactly once at the end
    falsifications: int = 0


def has_a_campaigner(settings: Settings) -> bool:
    """Whether the platform carries out campaigns; its setting may be off."""
    return any(program.kind == "campaigner" for program in programs(settings))


async def play_campaign(settings: Settings, platform: Publisher, run: str) -> Seen:
    """Run a campaign with a fleet of its own: propose and approve it, open its gate, pause it, resume it, and let it complete."""
    name = f"demo-{run}"
    seen = Seen()
    began = time.monotonic()
    vins = make_vins(TARGETS, seed=int(run) + 1)
    canaries, rest = vins[:CANARIES], vins[CANARIES:]
    online, later = vins[:ONLINE], vins[ONLINE:]
    user = settings.mqtt_username_campaigns
    async with Fleet(settings, vins, seed=int(run) + 1) as fleet, Publisher(settings, user) as orders:
        await fleet.connect(online)
        await platform.data(f"data-{name}", b"map")
        await orders.order(r.Propose(name, AUTHOR, plan=_plan(name, vins, canaries)))
        await orders.order(r.Approve(name, APPROVER))

        await _wait_for(fleet, lambda: _count_receivers(fleet, name, canaries) == CANARIES)
        await _wait_for_state(settings, name, "held")
        seen.canaries = _count_receivers(fleet, name, canaries)
        seen.early = _count_receivers(fleet, name, rest)

        await orders.order(r.Approve(name, APPROVER, wave=0))
        await _wait_for(fleet, lambda: _count_receivers(fleet, name, online) == ONLINE)

        await orders.order(r.Pause(name, APPROVER, why="the demo pauses it"))
        await fleet.connect(later)
        probe = f"probe-{name}"  # another batch: once it has arrived, the campaign's data would have arrived, too
        await platform.data(sha1_hex(b"probe"), b"probe")
        await platform.trigger(later, probe, sha1_hex(b"probe"))
        await _wait_for(fleet, lambda: _count_receivers(fleet, probe, later) == LATER)
        seen.probed = _count_receivers(fleet, probe, later)
        seen.paused = _count_receivers(fleet, name, later)

        await orders.order(r.Resume(name, APPROVER))
        seen.state = await _wait_for_state(settings, name, "completed")
        copies = _copies(fleet, name)
        seen.once = sum(copies[vin] == 1 for vin in vins)
    seen.falsifications = await asyncio.to_thread(_count_falsifications, settings, name)
    seen.seconds = time.monotonic() - began
    return seen


def _plan(name: str, vins: list[Owner], canaries: list[Owner]) -> dict[str, Any]:
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    waves = [
        {"name": "canary", "vins": list(canaries), "gate": {"success": "100%", "approve": 1}},
        {"name": "rest", "size": "rest"},
    ]
    return {"campaign": name, "data_id": f"data-{name}", "targets": {"vins": list(vins)}, "waves": waves, "ends": ends}


async def _wait_for(fleet: Fleet, has_arrived: Callable[[], bool]) -> None:
    with contextlib.suppress(TimeoutError):  # the caller's check reports missing messages
        await fleet.wait_for(lambda _: has_arrived(), WAIT_S)


async def _wait_for_state(settings: Settings, name: str, wanted: str) -> str:
    """Wait until the campaign is in this state, at most `WAIT_S`; return the last state seen, empty if it is not on record."""
    from manifold.campaigns.record import read_campaigns

    state = ""
    deadline = time.monotonic() + WAIT_S
    while state != wanted and time.monotonic() < deadline:
        campaigns = await asyncio.to_thread(read_campaigns, settings, [name])
        state = str(campaigns[name].decided.stage) if name in campaigns else ""
        await asyncio.sleep(POLL_S)
    return state


def _count_falsifications(settings: Settings, name: str) -> int:
    from manifold.campaigns.record import read_facts
    from manifold.campaigns.verification import verify

    return len(verify(read_facts(settings, name)))


def _copies(fleet: Fleet, request_id: str) -> Counter[Owner]:
    """How many messages of this request each vehicle received, without MQTT's redeliveries."""
    return Counter(message.vin for message in fleet.received if message.request_id == request_id and not message.dup)


def _count_receivers(fleet: Fleet, request_id: str, vins: Iterable[Owner]) -> int:
    return len(_copies(fleet, request_id).keys() & set(vins))
