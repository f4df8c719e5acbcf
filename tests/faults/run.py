"""One run: a platform, a fleet, a publisher that retries until it has receipts, seeded faults, a quiet phase, and the verdict."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt, ReceiptStatus, sha1_hex
from manifold.contracts.queue_names import ecq_queue
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Behaviour, Fleet, vins
from manifold.sandbox.platform import supervise, supervisord
from manifold.sandbox.platform.programs import Program
from manifold.sandbox.platform.programs import command as plain_command
from manifold.settings import Settings
from tests.faults.campaigns import Campaigns
from tests.faults.checker import check
from tests.faults.clocked_recorder import Clock
from tests.faults.cutter import Cutter
from tests.faults.history import History, Line, What, read
from tests.faults.injector import Fault, Injector, faults
from tests.faults.verdict import Verdict
from tests.faults.watchers import Monitor, Vehicles, tell_recorded
from tests.support.platforms import platform_settings
from tests.support.servers import ROOT

DEADLINE_S = 4.0
RECEIPT_S = 8.0  # after which the platform publishes again
QUIET_S, LOOK_S = 90.0, 0.3  # seconds without a new delivery, and between two checks
KEYS, REWINDS, WRITE_EVERY_S = 5, 0.02, 0.1  # of compacted queues: keys per client, share of rewinds, seconds between writes
BACKLOG = 4000  # accepted and undelivered entries at which publishers wait, as for a busy platform
DOORS = ("mqtt_port", "mqtt_services_port")
ROADS = Behaviour(
    heartbeat_s=3.0,
    think_s=(0.0, 0.05),
    stay_s=30.0,
    away_s=4.0,
    crash_share=0.4,
    crash_before_ack_share=0.01,
    clean_share=0.2,
    compacted_queues=True,
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run."""

    seed: int
    seconds: float  # of faults, not counting start, recovery and verdict
    home: Path
    vehicles: int = 40
    batch: int = 10  # vehicles per trigger
    every_s: float = 0.25  # between two triggers of a publisher
    publishers: int = 2
    stop_s: float = 30.0
    calm_s: float = 5.0  # between two faults
    wipes: bool = True
    tls: bool = False
    only: tuple[Fault, ...] = ()  # only these faults


@dataclass(slots=True)
class Result:
    """The result of a run."""

    plan: Plan
    history: Path
    verdict: Verdict
    injected: list[tuple[str, float]]  # each fault, and the seconds until recovery
    seen: dict[str, int] = field(default_factory=dict)  # number of history lines by kind
    trouble: str = ""  # why the run could not be completed

    @property
    def held(self) -> bool:
        """Whether the run was played to its end and no promise was broken."""
        return not self.trouble and not self.verdict.broken


def settings_of(plan: Plan) -> Settings:
    """The settings of a platform with short deadlines and segments and two dispatchers."""
    return platform_settings(
        plan.home,
        ecq_rewinds_per_hour=0,
        tls=plan.tls,
        dispatchers=2,
        ack_deadline_seconds=DEADLINE_S,
        ack_deadline_max_seconds=2 * DEADLINE_S,
        segment_max_seconds=5,
        spark_driver_memory="1g",
    )


def play(plan: Plan, say: Say = lambda _: None) -> Result:
    """Play the plan. The history is in its home folder."""
    file = plan.home / "history.jsonl"
    plan.home.mkdir(parents=True, exist_ok=True)
    settings, clock = settings_of(plan), Clock(plan.home / "clock")
    history = History(file)
    result = Result(plan, file, Verdict(), [])
    with _recorder_by(clock):
        say("starting the platform")
        try:
            supervise.up(settings)
            asyncio.run(_Run(plan, settings, history, clock, result, say).play())
        finally:
            supervise.down(settings)
            history.close()
    lines = read(file)
    result.verdict = check(lines, deadline_s=DEADLINE_S)
    result.seen = {what.value: sum(line.what is what for line in lines) for what in What}
    return result


@contextmanager
def _recorder_by(clock: Clock) -> Iterator[None]:
    """Make the supervisor start the recorder with this clock and with the tests on its path."""

    def command(program: Program, settings: Settings) -> list[str]:
        if program.kind == "recorder":
            return [sys.executable, "-m", "tests.faults.clocked_recorder", str(clock.file)]
        return plain_command(program, settings)

    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [before])])
    supervisord.command = command  # type: ignore[attr-defined]  # the only name under which the supervisor looks it up
    try:
        yield
    finally:
        supervisord.command = plain_command  # type: ignore[attr-defined]
        os.environ["PYTHONPATH"] = before


class _Run:
    """The tasks that run while the platform is up."""

    def __init__(self, plan: Plan, settings: Settings, history: History, clock: Clock, result: Result, say: Say) -> None:
        self._plan, self._settings, self._history, self._clock = plan, settings, history, clock
        self._result, self._say = result, say
        self._rng = Random(f"faults/{plan.seed}")
        self._numbers = count(1)
        self._vins = vins(plan.vehicles, plan.seed)
        self._witness = Vehicles(history)
        self._accepted: set[tuple[str, str]] = set()  # (vehicle, request)
        self._written: set[str] = set()  # clients with messages in their compacted queue
        self._enough = asyncio.Event()
        self._campaigns = Campaigns(settings, history, self._witness, plan.seed, self._vins)

    async def play(self) -> None:
        """Connect everyone, run all faults, heal, and stop."""
        settings, plan = self._settings, self._plan
        async with contextlib.AsyncExitStack() as stack:
            rng, doors = Random(f"cutter/{plan.seed}"), DOORS if plan.tls else DOORS[:1]
            cutters = [await stack.enter_async_context(Cutter(settings.host, getattr(settings, name), rng)) for name in doors]
            await stack.enter_async_context(Monitor(settings, self._history))
            door = settings.model_copy(update={name: cutter.port for name, cutter in zip(doors, cutters, strict=True)})
            injector = Injector(settings, self._history, cutters, self._clock, Random(f"injector/{plan.seed}"))
            await injector.healthy()
            async with Fleet(door, self._vins, seed=plan.seed, behaviour=ROADS, listener=self._witness) as fleet:
                await fleet.connect()
                async with asyncio.TaskGroup() as group:
                    for number in range(plan.publishers):
                        group.create_task(self._publish(door, number), name=f"faults.publisher.{number}")
                    group.create_task(self._write(door), name="faults.ecq-publisher")
                    group.create_task(self._campaigns.play(door, self._insist, self._enough), name="faults.campaigns")
                    await self._harm(injector)
                    self._enough.set()
                self._result.injected = injector.done
                self._result.trouble = self._result.trouble or self._campaigns.trouble
                await self._quiet()
        await asyncio.to_thread(tell_recorded, settings, self._history)
        await asyncio.to_thread(self._campaigns.tell)

    async def _harm(self, injector: Injector) -> None:
        plan, ends_at = self._plan, time.monotonic() + self._plan.seconds
        endless = faults(self._rng, stop_s=plan.stop_s, wipes=plan.wipes, tls=plan.tls)
        try:
            await asyncio.sleep(plan.calm_s)
            for fault in plan.only or endless:
                if not plan.only and time.monotonic() > ends_at:
                    return
                self._say(f"{len(self._accepted)} accepted, {len(self._witness.delivered)} delivered; {fault}")
                await injector.inject(fault)
                await asyncio.sleep(plan.calm_s)
        except (TimeoutError, RuntimeError) as exc:
            self._result.trouble = f"not healthy again after {fault}: {exc!r}"
            self._result.injected = injector.done

    async def _publish(self, door: Settings, number: int) -> None:
        """Publish batch after batch, each until its receipt arrives."""
        rng = Random(f"publisher/{self._plan.seed}/{number}")
        async with Publisher(door) as publisher:
            while not self._enough.is_set():
                name = next(self._numbers)
                payload = rng.randbytes(rng.randrange(1, 4000))
                named = rng.sample(self._vins, self._plan.batch)
                request, sha1 = f"task_{self._plan.seed}_{name}", sha1_hex(payload)
                for vin in named:
                    self._history.tell(Line(time.time(), What.ATTEMPTED, vin, request=request, sha1=sha1))
                data_id = f"data-{name}"
                if await self._insist(partial(publisher.data, data_id, payload)) is None:
                    return
                if (receipt := await self._insist(partial(publisher.trigger, named, request, data_id))) is None:
                    return
                self._accept(named, request, receipt)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._plan.every_s):
                        await self._enough.wait()
                while len(self._accepted) - len(self._witness.delivered) > BACKLOG and not self._enough.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)

    async def _write(self, door: Settings) -> None:
        """Write messages with a few keys for some vehicles, with occasional rewinds; each until its receipt arrives."""
        rng = Random(f"ecq/{self._plan.seed}")
        consumers = self._vins[: max(1, len(self._vins) // 4)]
        async with Publisher(door) as publisher:
            while not self._enough.is_set():
                consumer, key, payload = (
                    rng.choice(consumers),
                    f"key/{rng.randrange(KEYS)}",
                    rng.randbytes(rng.randrange(8, 30_000)),
                )
                if rng.random() < REWINDS:
                    await self._insist(partial(publisher.rewind, consumer, "earliest"))
                receipt = await self._insist(partial(publisher.write, consumer, key, payload))
                if receipt is None:
                    return
                self._written.add(consumer)
                line = Line(time.time(), What.ACCEPTED, ecq_queue(consumer), receipt.seq, key, sha1=sha1_hex(payload))
                self._history.tell(line)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WRITE_EVERY_S):
                        await self._enough.wait()

    async def _insist(self, publish: Callable[[], Coroutine[Any, Any, Receipt]]) -> Receipt | None:
        """Publish until the receipt arrives; None if the run cannot continue."""
        while not self._result.trouble:
            with contextlib.suppress(Retryable, TimeoutError):
                async with asyncio.timeout(RECEIPT_S):
                    return await publish()
            await asyncio.sleep(LOOK_S)
        return None

    def _accept(self, named: Sequence[str], request: str, receipt: Receipt) -> None:
        if receipt.status is ReceiptStatus.REFUSED:
            self._result.trouble = f"{request} was refused: {receipt.reason}"
            return
        seq = receipt.duplicate_of or receipt.seq
        for vin in named:
            self._accepted.add((vin, request))
            self._history.tell(Line(time.time(), What.ACCEPTED, vin, seq, request))

    async def _quiet(self) -> None:
        """Wait until every accepted entry is delivered and nothing is pending, or nothing more arrives; the checker decides."""
        self._say(f"{len(self._accepted)} accepted, {len(self._witness.delivered)} delivered; waiting for quiet")
        had, until = -1, 0.0
        witness = self._witness
        while self._accepted - self._witness.delivered or not await self._nothing_left():
            if len(witness.delivered) + witness.delivered_of_ecq > had:
                had, until = len(witness.delivered) + witness.delivered_of_ecq, time.monotonic() + QUIET_S
            if time.monotonic() > until:
                self._result.trouble = self._result.trouble or f"not quiet: nothing more was delivered for {QUIET_S:g} s"
                return
            await asyncio.sleep(LOOK_S)

    async def _nothing_left(self) -> bool:
        try:
            async with Redis.from_url(self._settings.redis) as redis:
                pending = await redis.exists(*(keys.pending(vin) for vin in self._vins))
                pending += await redis.exists(*(keys.ecq_keys(vin)[0] for vin in self._vins))
                return not pending and not await redis.xlen(keys.OUTCOMES)
        except RedisError:
            return False
