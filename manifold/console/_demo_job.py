"""The main job from end to end, on real servers, judged by what the vehicles actually received."""

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from manifold.console import _demo_campaign, _demo_ecq, _demo_lake, _demo_signals
from manifold.contracts import topics
from manifold.contracts.messages import ReceiptStatus, sha1_hex
from manifold.contracts.names import Owner
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet, Received
from manifold.sandbox.fleet import vins as make_vins
from manifold.sandbox.fleet.gateways import Kind
from manifold.sandbox.platform import supervise
from manifold.settings import Settings

VEHICLES, ONLINE = 200, 150
FIRMWARE_BYTES = 64 * 1024
DELIVERY_WAIT_S = 120.0  # this and the other limits of the demo are for a busy machine
SPARK_BATCH = "SparkDataFrame"  # Great Expectations' name for its batch of data
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Assertion:
    """One claim, whether it held, and what was observed."""

    what: str
    held: bool
    seen: str


@dataclass(slots=True)
class Demo:
    """One run: its names, its fleet, and the checks so far."""

    settings: Settings
    say: Say
    run: str = field(default_factory=lambda: f"{time.time_ns() // 1_000_000}")
    checks: list[Assertion] = field(default_factory=list)
    report: str = ""
    signals: _demo_signals.Kinds | None = None  # None: without an AMQP door
    example: str = "<VIN>"

    @property
    def held(self) -> bool:
        """Whether the run was completed and every check held."""
        return bool(self.checks) and all(check.held for check in self.checks)

    def fail(self, why: str) -> None:
        """Record that the run was aborted."""
        self._check("the job could be played to its end", held=False, seen=why)

    async def play(self) -> None:
        """Run all steps that need the platform."""
        vins = make_vins(VEHICLES, seed=int(self.run))
        online, later = vins[:ONLINE], vins[ONLINE:]
        self.example = later[0]
        async with Fleet(self.settings, vins, seed=int(self.run)) as fleet, Publisher(self.settings) as platform:
            self.say(f"connecting {ONLINE} of {VEHICLES} vehicles")
            await fleet.connect(online)
            await self._refuse(platform)
            if _demo_campaign.has_a_campaigner(self.settings):
                await self._roll_out(platform)
            if _demo_signals.has_a_door(self.settings):
                await self._send_signals()
            self.say("waiting until Airflow has started, which it does meanwhile")
            await asyncio.to_thread(supervise.up, self.settings)
            await self._deliver(fleet, platform, vins, online, later)
            await self._judge()
            # Only after `_judge`: compacted messages of the first ten minutes would make the DAG start Spark once more.
            await self._compact(platform)
            await self._lose_redis(fleet, platform, vins, online, later)

    async def _deliver(
        self, fleet: Fleet, platform: Publisher, vins: list[Owner], online: list[Owner], later: list[Owner]
    ) -> None:
        """Send a batch to vehicles of which some connect later; check that all get it."""
        firmware = os.urandom(FIRMWARE_BYTES)
        request_id = f"task_demo_{self.run}_1"
        self.say(f"publishing {FIRMWARE_BYTES // 1024} KiB once, and one trigger for {VEHICLES} vehicles")
        data_id = sha1_hex(firmware)
        await platform.data(data_id, firmware)
        began = time.time()
        receipt = await platform.trigger(vins, request_id, data_id)
        self._check("the trigger was accepted", receipt.status is ReceiptStatus.RECORDED, f"seq {receipt.seq}")
        got = await self._await_received(fleet, request_id, online)
        whole = sum(message.payload_sha1 == data_id for message in got)
        self._check(f"{len(online)} vehicles online got it, byte for byte", whole == len(online), f"{whole} got it")
        waits = sorted((message.at.timestamp() - began) * 1000 for message in got)
        if waits:
            seen = f"p50 {statistics.median(waits):.0f} ms, p99 {waits[int(len(waits) * 0.99)]:.0f} ms, last {waits[-1]:.0f} ms"
            self._check(f"from trigger to vehicle, all {len(got)} of the batch", True, seen)
        await self._send_one(fleet, platform, online[0], data_id)
        self.say(f"{len(later)} more vehicles come online")
        early = len(_received_of(fleet, request_id)) - len(got)
        await fleet.connect(later)
        got = await self._await_received(fleet, request_id, later)
        self._check(
            f"the other {len(later)} got theirs when they came", len(got) == len(later) and not early, f"{len(got)} got it"
        )

    async def _refuse(self, platform: Publisher) -> None:
        receipt = await platform.publish(topics.TRIGGER, b'{"ids": ["VIN-1", 7], "request_id": "task_demo_bad"}')
        self._check(
            "a malformed trigger was refused, with a receipt", receipt.status is ReceiptStatus.REFUSED, receipt.reason or ""
        )

    async def _compact(self, platform: Publisher) -> None:
        clients, writes, per_client = _demo_ecq.CLIENTS, _demo_ecq.WRITES, _demo_ecq.KEYS
        self.say(f"writing {writes} messages of {per_client} keys to each of {clients} clients that are away; then they come")
        seen = await _demo_ecq.play_ecq(self.settings, platform, self.run)
        counts = f"{seen.recorded} recorded in {seen.seconds:.1f} s"
        self._check(f"{clients} clients were written {writes} messages each", seen.recorded == clients * writes, counts)
        counts = f"{seen.arrived} messages; {seen.right} clients in order"
        is_right = seen.right == clients and seen.arrived == clients * per_client
        self._check(f"each got the newest of its {per_client} keys when it came", is_right, counts)

    async def _roll_out(self, platform: Publisher) -> None:
        targets, canaries, later = _demo_campaign.TARGETS, _demo_campaign.CANARIES, _demo_campaign.LATER
        self.say(f"a campaign for {targets} vehicles: {canaries} first, then a gate, a pause, and a resume")
        seen = await _demo_campaign.play_campaign(self.settings, platform, self.run)
        is_held = seen.canaries == canaries and seen.early == 0
        self._check(f"a campaign's first {canaries} got it, no other", is_held, f"{seen.canaries} got it, {seen.early} others")
        is_paused = seen.probed == later and seen.paused == 0
        counts = f"{seen.probed} reached by another batch, {seen.paused} by it"
        self._check(f"a paused campaign sent nothing to {later} that came", is_paused, counts)
        is_complete = seen.once == targets and seen.state == "completed" and not seen.falsifications
        counts = f"{seen.once} got it once; {seen.falsifications} unexplained; {seen.seconds:.1f} s"
        self._check(f"resumed, it reached each of {targets} once", is_complete, counts)

    async def _send_signals(self) -> None:
        count, devices = _demo_signals.MESSAGES, _demo_signals.DEVICES
        self.say(f"{count} signals of {devices} devices over AMQP, of which some are repeated, forged and malformed")
        self.signals = sent = await _demo_signals.send_signals(self.settings, self.run)
        invalid = sum(message.code is not None for message in sent.sent)
        duration = f"{sent.settled} of them in {sent.seconds:.1f} s"
        self._check(f"the AMQP door was done with {count} messages", sent.settled == count, duration)
        self._check(f"it refused {invalid}, each with its code", sent.refused == invalid, f"{len(sent.codes)} dead letters")

    def _check_signals_in_lake(self, sent: _demo_signals.Kinds) -> None:
        good = len(sent.of(Kind.GOOD))
        rows = sent.raw.total()
        counts = f"{rows} rows in xray_raw_signals, {sent.processed.total()} in xray_processed_signals"
        self._check(f"the lake has each of {good} good signals exactly once", sent.good == rows == good, counts)
        self._check("and each refused one with its code", sent.in_quarantine, f"{sent.quarantined.total()} rows in quarantine")

    async def _judge(self) -> None:
        """Run the ingest DAG; check the delivered and refused messages in the lake, and that the audit passed."""
        self.say("Airflow runs the DAG ingest_archives")
        state, seconds = await asyncio.to_thread(_demo_lake.run_ingest_dag, self.settings)
        self._check("Airflow ran ingest_archives", state == "success", f"{state} after {seconds:.0f} s")
        self.say("reading the tables with PyIceberg")
        rows = await asyncio.to_thread(_demo_lake.count_rows, self.settings, f"task_demo_{self.run}_1")
        self._check("the lake has every VIN of the batch", rows.ids == VEHICLES, f"{rows.ids} rows in sdv_fanout_ids")
        self._check("and how each ended", rows.delivered == VEHICLES, f"{rows.delivered} rows delivered in sdv_fanout_outcomes")
        self._check("and what was refused", rows.quarantined > 0, f"{rows.quarantined} rows in quarantine")
        if self.signals is not None:
            await asyncio.to_thread(_demo_signals.find_in_lake, self.settings, self.signals)
            self._check_signals_in_lake(self.signals)
        verdict, self.report = await asyncio.to_thread(_demo_lake.verdict_of, self.settings, rows.run_id)
        self._check("the audit let it pass", verdict == "passed", f"{verdict}: {self.report}")
        batch_type, application_id = await asyncio.to_thread(_demo_lake.spark_evidence, self.settings, rows.run_id)
        self._check(
            "judged on Spark", bool(batch_type == SPARK_BATCH and application_id), f"{batch_type} of application {application_id}"
        )

    async def _send_one(self, fleet: Fleet, platform: Publisher, vin: Owner, data_id: str) -> None:
        """Send a trigger to one vehicle, to measure the latency of a message that waits behind no others."""
        request_id = f"task_demo_{self.run}_one"
        began = time.time()
        await platform.trigger([vin], request_id, data_id)
        got = await self._await_received(fleet, request_id, [vin])
        waited = (got[0].at.timestamp() - began) * 1000 if got else 0
        self._check("from a trigger for one vehicle to it", bool(got), f"{waited:.0f} ms")

    async def _lose_redis(
        self, fleet: Fleet, platform: Publisher, vins: list[Owner], online: list[Owner], later: list[Owner]
    ) -> None:
        """Wipe Redis while entries are pending, rebuild the queues, and check that nothing is lost or comes again."""
        request_id = f"task_demo_{self.run}_2"
        self.say(f"{len(later)} vehicles leave; a second batch; then Redis is wiped")
        await fleet.go_offline(later)
        data_id = f"notice-{self.run}"
        await platform.data(data_id, b"second")
        await platform.trigger(vins, request_id, data_id)
        await self._await_received(fleet, request_id, online)
        received_before = len(fleet.received)
        await asyncio.to_thread(_demo_lake.wait_until_outcomes_recorded, self.settings, online)
        pending = await asyncio.to_thread(_demo_lake.wipe_redis, self.settings)
        self.say("rebuilding the queues from the lake")
        queued, seconds = await asyncio.to_thread(_demo_lake.rebuild)
        self._check("the rebuild found what was pending", queued == pending, f"{queued} of {pending} entries in {seconds:.0f} s")
        await fleet.connect(later)
        got = await self._await_received(fleet, request_id, later)
        self._check("nothing was lost with Redis", len(got) == len(later), f"{len(got)} of {len(later)} got the second batch")
        repeated = len(fleet.received) - received_before - len(got)
        self._check("nothing acknowledged came back", repeated == 0, f"{repeated} messages came again")
        await asyncio.to_thread(_demo_lake.wait_until_outcomes_recorded, self.settings, later)

    async def _await_received(self, fleet: Fleet, request_id: str, vins: list[Owner]) -> list[Received]:
        wanted = set(vins)

        def arrived() -> list[Received]:
            return [message for message in _received_of(fleet, request_id) if message.vin in wanted]

        with contextlib.suppress(TimeoutError):  # the following check reports what is missing
            await fleet.wait_for(lambda _: len({message.vin for message in arrived()}) == len(wanted), DELIVERY_WAIT_S)
        return arrived()

    def _check(self, what: str, held: bool, seen: str) -> None:
        self.checks.append(Assertion(what, held, seen))


def _received_of(fleet: Fleet, request_id: str) -> list[Received]:
    return [message for message in fleet.received if message.request_id == request_id]
