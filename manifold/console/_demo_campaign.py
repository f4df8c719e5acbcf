"""The demo's campaign: two waves with a gate between them, a pause and a resume, judged by what the vehicles received."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from manifold.contracts import campaigns as records
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
class Observed:
    """What was observed of the campaign, above all how many vehicles had received its data at each step of the demo."""

    final_state: str = ""  # of the campaign
    seconds: float = 0.0  # duration of all steps
    canaries_at_gate: int = 0  # vehicles of the first wave, when the campaign was held at the gate
    others_at_gate: int = 0  # vehicles of the second wave, at the same time
    reached_in_pause: int = 0  # vehicles that connected during the pause, and received another batch (not the campaign's data)
    got_data_in_pause: int = 0  # vehicles that connected during the pause, and received the campaign's data
    got_data_once: int = 0  # targets that had received the data exactly once at the end
    falsifications: int = 0  # contradictions that the verification of the campaign's record found


def has_a_campaigner(settings: Settings) -> bool:
    """Whether the platform carries out campaigns; its setting may be off."""
    return any(program.kind == "campaigner" for program in programs(settings))


async def play_campaign(settings: Settings, platform: Publisher, run: str) -> Observed:
    """Run a campaign with a fleet of its own: propose and approve it, open its gate, pause it, resume it, and let it complete.

    `run` is the name of the demo's run, a number, which also seeds the VINs.
    """
    name = f"demo-{run}"
    observed = Observed()
    began = time.monotonic()
    vins = make_vins(TARGETS, seed=int(run) + 1)
    canaries, rest = vins[:CANARIES], vins[CANARIES:]
    online, later = vins[:ONLINE], vins[ONLINE:]
    user = settings.mqtt_username_campaigns
    async with Fleet(settings, vins, seed=int(run) + 1) as fleet, Publisher(settings, user) as orders:
        await fleet.connect(online)
        await platform.data(f"data-{name}", b"map")
        await orders.order(records.Propose(name, AUTHOR, plan=_plan(name, vins, canaries)))
        await orders.order(records.Approve(name, APPROVER))

        await _wait_for(fleet, lambda: _count_receivers(fleet, name, canaries) == CANARIES)
        await _wait_for_state(settings, name, "held")
        observed.canaries_at_gate = _count_receivers(fleet, name, canaries)
        observed.others_at_gate = _count_receivers(fleet, name, rest)

        await orders.order(records.Approve(name, APPROVER, wave=0))
        await _wait_for(fleet, lambda: _count_receivers(fleet, name, online) == ONLINE)

        await orders.order(records.Pause(name, APPROVER, why="the demo pauses it"))
        await fleet.connect(later)
        probe_id = f"probe-{name}"  # another batch: once it has arrived, the campaign's data would have arrived, too
        await platform.data(sha1_hex(b"probe"), b"probe")
        await platform.trigger(later, probe_id, sha1_hex(b"probe"))
        await _wait_for(fleet, lambda: _count_receivers(fleet, probe_id, later) == LATER)
        observed.reached_in_pause = _count_receivers(fleet, probe_id, later)
        observed.got_data_in_pause = _count_receivers(fleet, name, later)

        await orders.order(records.Resume(name, APPROVER))
        observed.final_state = await _wait_for_state(settings, name, "completed")
        messages_by_vin = _count_messages(fleet, name)
        observed.got_data_once = sum(messages_by_vin[vin] == 1 for vin in vins)
    observed.falsifications = await asyncio.to_thread(_count_falsifications, settings, name)
    observed.seconds = time.monotonic() - began
    return observed


def _plan(name: str, vins: list[Owner], canaries: list[Owner]) -> dict[str, Any]:
    """A plan with two waves: the canaries, then the other vehicles once all canaries succeeded and one person has approved."""
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    waves = [
        {"name": "canary", "vins": list(canaries), "gate": {"success": "100%", "approve": 1}},
        {"name": "rest", "size": "rest"},
    ]
    return {"campaign": name, "data_id": f"data-{name}", "targets": {"vins": list(vins)}, "waves": waves, "ends": ends}


async def _wait_for(fleet: Fleet, have_arrived: Callable[[], bool]) -> None:
    """Wait until the expected messages have arrived, at most `WAIT_S`."""
    with contextlib.suppress(TimeoutError):  # the caller counts what has arrived, so missing messages are reported there
        await fleet.wait_for(lambda _: have_arrived(), WAIT_S)


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


def _count_messages(fleet: Fleet, request_id: str) -> Counter[Owner]:
    """Count the messages of this request that each vehicle received, without MQTT's redeliveries."""
    return Counter(message.vin for message in fleet.received if message.request_id == request_id and not message.dup)


def _count_receivers(fleet: Fleet, request_id: str, vins: Iterable[Owner]) -> int:
    return len(_count_messages(fleet, request_id).keys() & set(vins))
