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
    say: Say  # called with a description of each step as it begins
    run: str = field(default_factory=lambda: f"{time.time_ns() // 1_000_000}")  # part of all names, so that runs do not mix
    checks: list[Assertion] = field(default_factory=list)
    report: str = ""  # address of the quality report
    signals: _demo_signals.SentSignals | None = None  # None: without an AMQP door
    example: str = "<VIN>"  # a vehicle to look up afterwards

    @property
    def held(self) -> bool:
        """Whether the run was completed and every check held."""
        return bool(self.checks) and all(check.held for check in self.checks)

    def record_abort(self, why: str) -> None:
        """Record that the run was aborted, as a check that did not hold."""
        self._check("the job could be played to its end", held=False, seen=why)

    async def play(self) -> None:
        """Run all steps that need the platform."""
        vins = make_vins(VEHICLES, seed=int(self.run))
        online, later = vins[:ONLINE], vins[ONLINE:]
        self.example = later[0]
        async with Fleet(self.settings, vins, seed=int(self.run)) as fleet, Publisher(self.settings) as platform:
            self.say(f"connecting {ONLINE} of {VEHICLES} vehicles")
            await fleet.connect(online)
            await self._send_malformed(platform)
            if _demo_campaign.has_a_campaigner(self.settings):
                await self._run_campaign(platform)
            if _demo_signals.has_a_door(self.settings):
                await self._send_signals()
            self.say("waiting until Airflow has started, which it does meanwhile")
            await asyncio.to_thread(supervise.up, self.settings)
            await self._deliver(fleet, platform, vins, online, later)
            await self._ingest()
            # Only after `_ingest`: for compacted messages of the first ten minutes, the DAG would start Spark again to populate.
            await self._write_compacted(platform)
            await self._wipe_redis(fleet, platform, vins, online, later)

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
        got_online = await self._await_received(fleet, request_id, online)
        intact = sum(message.payload_sha1 == data_id for message in got_online)
        self._check(f"{len(online)} vehicles online got it, byte for byte", intact == len(online), f"{intact} got it")
        waits_ms = sorted((message.at.timestamp() - began) * 1000 for message in got_online)
        if waits_ms:
            p50_ms, p99_ms = statistics.median(waits_ms), waits_ms[int(len(waits_ms) * 0.99)]
            seen = f"p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms, last {waits_ms[-1]:.0f} ms"
            self._check(f"from trigger to vehicle, all {len(got_online)} of the batch", True, seen)
        await self._send_one(fleet, platform, online[0], data_id)
        self.say(f"{len(later)} more vehicles come online")
        unexpected = len(_received_of(fleet, request_id)) - len(got_online)  # messages to vehicles that are not online yet
        await fleet.connect(later)
        got_later = await self._await_received(fleet, request_id, later)
        is_complete = len(got_later) == len(later) and unexpected == 0
        self._check(f"the other {len(later)} got theirs when they came", is_complete, f"{len(got_later)} got it")

    async def _send_malformed(self, platform: Publisher) -> None:
        """Send a malformed trigger; check that it is refused."""
        receipt = await platform.publish(topics.TRIGGER, b'{"ids": ["VIN-1", 7], "request_id": "task_demo_bad"}')
        self._check(
            "a malformed trigger was refused, with a receipt", receipt.status is ReceiptStatus.REFUSED, receipt.reason or ""
        )

    async def _write_compacted(self, platform: Publisher) -> None:
        """Write to compacted queues whose clients are away; check what the clients receive when they connect."""
        clients, writes, keys = _demo_ecq.CLIENTS, _demo_ecq.WRITES, _demo_ecq.KEYS
        self.say(f"writing {writes} messages of {keys} keys to each of {clients} clients that are away; then they come")
        result = await _demo_ecq.play_ecq(self.settings, platform, self.run)
        counts = f"{result.recorded_writes} recorded in {result.write_seconds:.1f} s"
        self._check(f"{clients} clients were written {writes} messages each", result.recorded_writes == clients * writes, counts)
        counts = f"{result.received_messages} messages; {result.correct_clients} clients in order"
        is_correct = result.correct_clients == clients and result.received_messages == clients * keys
        self._check(f"each got the newest of its {keys} keys when it came", is_correct, counts)

    async def _run_campaign(self, platform: Publisher) -> None:
        """Run a campaign; check that its gate and a pause hold it, and that it reaches each target once."""
        targets, canaries, later = _demo_campaign.TARGETS, _demo_campaign.CANARIES, _demo_campaign.LATER
        self.say(f"a campaign for {targets} vehicles: {canaries} first, then a gate, a pause, and a resume")
        observed = await _demo_campaign.play_campaign(self.settings, platform, self.run)
        is_held = observed.canaries_at_gate == canaries and observed.others_at_gate == 0
        counts = f"{observed.canaries_at_gate} got it, {observed.others_at_gate} others"
        self._check(f"a campaign's first {canaries} got it, no other", is_held, counts)
        is_paused = observed.reached_in_pause == later and observed.got_data_in_pause == 0
        counts = f"{observed.reached_in_pause} reached by another batch, {observed.got_data_in_pause} by it"
        self._check(f"a paused campaign sent nothing to {later} that came", is_paused, counts)
        has_completed = observed.final_state == "completed" and not observed.falsifications
        counts = f"{observed.got_data_once} got it once; {observed.falsifications} unexplained; {observed.seconds:.1f} s"
        self._check(f"resumed, it reached each of {targets} once", has_completed and observed.got_data_once == targets, counts)

    async def _send_signals(self) -> None:
        """Send valid and invalid signals; check that the AMQP door has handled all, and refused the invalid ones."""
        count, devices = _demo_signals.MESSAGES, _demo_signals.DEVICES
        self.say(f"{count} signals of {devices} devices over AMQP, of which some are repeated, forged and malformed")
        signals = await _demo_signals.send_signals(self.settings, self.run)
        self.signals = signals
        invalid = sum(message.code is not None for message in signals.sent)
        duration = f"{signals.handled} of them in {signals.seconds:.1f} s"
        self._check(f"the AMQP door was done with {count} messages", signals.handled == count, duration)
        dead_letters = f"{len(signals.codes)} dead letters"
        self._check(f"it refused {invalid}, each with its code", signals.refused_with_code == invalid, dead_letters)

    def _check_signals_in_lake(self, signals: _demo_signals.SentSignals) -> None:
        """Check that the lake has each valid signal exactly once, and the refused ones in quarantine, each with its code."""
        good = len(signals.of(Kind.GOOD))
        rows = signals.raw.total()
        is_exact = signals.good_exactly_once == rows == good
        counts = f"{rows} rows in xray_raw_signals, {signals.processed.total()} in xray_processed_signals"
        self._check(f"the lake has each of {good} good signals exactly once", is_exact, counts)
        counts = f"{signals.quarantined.total()} rows in quarantine"
        self._check("and each refused one with its code", signals.is_quarantine_complete, counts)

    async def _ingest(self) -> None:
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
            await asyncio.to_thread(_demo_signals.count_in_lake, self.settings, self.signals)
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
        waited_ms = (got[0].at.timestamp() - began) * 1000 if got else 0
        self._check("from a trigger for one vehicle to it", bool(got), f"{waited_ms:.0f} ms")

    async def _wipe_redis(
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
        repeated = len(fleet.received) - received_before - len(got)  # all that the vehicles received again
        self._check("nothing acknowledged came back", repeated == 0, f"{repeated} messages came again")
        await asyncio.to_thread(_demo_lake.wait_until_outcomes_recorded, self.settings, later)

    async def _await_received(self, fleet: Fleet, request_id: str, vins: list[Owner]) -> list[Received]:
        """Wait until each of these vehicles has a message of this request, at most `DELIVERY_WAIT_S`; return these messages."""
        wanted = set(vins)

        def arrived() -> list[Received]:
            return [message for message in _received_of(fleet, request_id) if message.vin in wanted]

        def have_all_arrived() -> bool:
            return len({message.vin for message in arrived()}) == len(wanted)

        with contextlib.suppress(TimeoutError):  # the caller's check reports what is missing
            await fleet.wait_for(lambda _: have_all_arrived(), DELIVERY_WAIT_S)
        return arrived()

    def _check(self, what: str, held: bool, seen: str) -> None:
        self.checks.append(Assertion(what, held, seen))


def _received_of(fleet: Fleet, request_id: str) -> list[Received]:
    return [message for message in fleet.received if message.request_id == request_id]
