"""The loop of the active campaigner: folds new facts, asks `step` for effects, and publishes them."""

import asyncio
import socket
import time
from collections.abc import Iterable
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.campaigns.fold import Campaign
from manifold.campaigns.plan import Plan
from manifold.campaigns.service import _metrics
from manifold.campaigns.service._book import Book
from manifold.campaigns.service._braking import UNSURE, FoldedBrakes
from manifold.campaigns.service._campaign_metrics import CAMPAIGNS
from manifold.campaigns.service._lead import Lead
from manifold.campaigns.service._presence import Sweep
from manifold.campaigns.step import Decide, Policy, Release, candidates, step
from manifold.campaigns.wire import trigger_payload
from manifold.contracts import campaigns as r
from manifold.contracts import topics
from manifold.contracts.errors import ManifoldError, Retryable
from manifold.contracts.messages import Receipt, ReceiptStatus
from manifold.contracts.names import MAX_VIN
from manifold.contracts.seq import wall_clock_ms
from manifold.messaging.publisher import Publisher
from manifold.queues import Policy as QueuePolicy
from manifold.queues import Queues
from manifold.settings import Settings

CLIENT_ID = "{}-active"  # of every campaigner, behind its user name: a broker keeps the order of one client's messages
READ_S = 0.5  # pause between two reads of the record
AWAITED_S = 0.1  # the same while a published message is not on record yet
PAUSE_FACTOR = 4  # an unchanged state is decided on again after a pause of this many times what the decision took
REFUSED_S = 30.0  # pause of a campaign whose message was refused
MAX_VINS = 100_000  # in one release
MAX_CLOCK_SKEW_MS = 5_000
# Decisions are for an instant this far in the past, so that the rate also holds for messages that are delivered somewhat late.
MARGIN_MS = 1_000
_TRIGGER_BYTES = 1_000  # without VINs

log = structlog.get_logger(__name__)


class Active:
    """The active campaigner, from the moment at which it has the lease."""

    def __init__(self, settings: Settings, redis: Redis, lead: Lead, problem: str) -> None:
        self.problem: str | None = problem  # until the record was read
        self.waiting: dict[str, str] = {}  # campaign → why nothing is decided about it
        self.open_campaigns = 0
        self._settings, self._lead = settings, lead
        self._queues, self._book = Queues(redis, QueuePolicy.of(settings)), Book(settings)
        fitting = max(1, (settings.max_trigger_bytes - _TRIGGER_BYTES) // (MAX_VIN + 3))
        self._policy = Policy(
            by=f"{r.CAMPAIGNER}{socket.gethostname()}",
            epoch=lead.epoch,
            ack_deadline_ms=self._queues.policy.ack_deadline_ms,
            max_vins=min(MAX_VINS, settings.max_ids, fitting),
        )
        self._awaited: dict[str, set[int]] = {}  # campaign → seqs of its published messages that are not folded yet
        self._unsure: set[str] = set()  # campaigns with a published message that may or may not be on record
        self._refused_until: dict[str, float] = {}  # campaign → when it is tried again (monotonic seconds)
        self._stepped: dict[str, tuple[Campaign, float]] = {}  # the state decided on last, and until when it needs no decision
        self._brakes = FoldedBrakes(self._queues)
        self._wake = asyncio.Event()
        self._sweep = Sweep(self._queues, self._wake)

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            Retryable: the broker does not answer.
        """
        settings = self._settings
        user = settings.mqtt_username_campaigns
        try:
            async with Publisher(settings, user, CLIENT_ID.format(user)) as publisher, asyncio.TaskGroup() as group:
                group.create_task(self._sweep.run(), name="campaigner.sweep")
                group.create_task(self._decide(publisher), name="campaigner.decide")
        finally:
            CAMPAIGNS.show((), {})
            _metrics.LEFT_ALONE.set(0)

    async def _decide(self, publisher: Publisher) -> None:
        while True:
            try:
                await self._round(publisher)
            except Retryable as exc:
                self._set_problem(str(exc))
            await self._pause()

    async def _round(self, publisher: Publisher) -> None:
        """Read the record and brakes, then decide the oldest `campaigns_open` campaigns that may go on."""
        began = time.monotonic()
        await asyncio.to_thread(self._book.refresh)
        _metrics.READ_SECONDS.set(time.monotonic() - began)
        now_ms = await self._now_ms()
        await self._brakes.read()
        not_over = list(self._book.proposed())
        self.open_campaigns = len(not_over)
        _metrics.OPEN.set(len(not_over))
        undecided = [(name, campaign) for name, campaign in not_over if campaign.decided.may_go_on(now_ms)]
        limit = self._settings.campaigns_open
        self.waiting = self._book.left_alone | dict.fromkeys(
            (name for name, _ in undecided[limit:]), f"campaigns_open={limit} others were proposed before it"
        )
        CAMPAIGNS.show(undecided, self._sweep.counts)
        for name, campaign in undecided[:limit]:
            try:
                await self._act(publisher, name, campaign, now_ms)
            except ManifoldError:
                raise
            except Exception as exc:  # noqa: BLE001  # one campaign must not stop the others
                self._book.leave_alone(name, exc)
                self.waiting |= self._book.left_alone
        open_names = {name for name, _ in not_over}  # a campaign's last message ends it: nobody folds that record any more
        self._awaited = {name: seqs for name, seqs in self._awaited.items() if name in open_names}
        names = {name for name, _ in undecided[:limit]}
        self._stepped = {name: stepped for name, stepped in self._stepped.items() if name in names}
        self._sweep.keep_only(names)
        self._set_problem(None)

    async def _act(self, publisher: Publisher, name: str, campaign: Campaign, now_ms: int) -> None:
        """Decide one campaign and publish the decisions and releases; note until when it needs no further decision."""
        plan = campaign.decided.plan
        if campaign.decided.epoch > self._policy.epoch:
            self.waiting[name] = f"another campaigner has taken over with epoch {campaign.decided.epoch}"
            return
        if plan is None or not self._is_due(name, campaign):
            return
        if campaign.decided.epoch < self._policy.epoch or name in self._unsure:
            # Once the fence is on record, everything published before it under this client id is on record, or never will be.
            if await self._publish(publisher, name, [Decide(r.Fence(name, self._policy.by, epoch=self._policy.epoch))], plan):
                self._unsure.discard(name)
            return
        may_release = await self._brakes.follow(name, campaign)
        last, not_before = self._stepped.get(name, (None, 0.0))
        if campaign is last and not self._sweep.has_found(name) and time.monotonic() < not_before:
            return
        began, here = time.monotonic(), self._sweep.take(name)
        effects = await asyncio.to_thread(step, campaign, now_ms, here, self._policy)
        if not may_release:
            self.waiting[name] = UNSURE
            effects = [each for each in effects if isinstance(each, Decide)]
        if not await self._publish(publisher, name, [each for each in effects if isinstance(each, Decide | Release)], plan):
            self._unsure.add(name)
        elif name not in self._awaited and plan.away == "wait":
            vins, allowed = await asyncio.to_thread(candidates, campaign, now_ms, self._policy)
            if vins and allowed:
                self._sweep.look_for(name, vins, allowed)
        ended = time.monotonic()
        self._stepped[name] = campaign, ended + PAUSE_FACTOR * (ended - began) if may_release else 0.0

    def _is_due(self, name: str, campaign: Campaign) -> bool:
        if self._book.is_behind(name):
            self.waiting[name] = "what is new of it is being folded"
            return False
        if time.monotonic() < self._refused_until.get(name, 0.0):
            self.waiting[name] = "the recorder has refused what was published; see the log"
            return False
        awaited = self._awaited.get(name, set()) - campaign.orders.keys() - campaign.releases.keys()
        if awaited:
            self._awaited[name] = awaited
            self.waiting[name] = f"waits for the records of {len(awaited)} of its own messages"
        else:
            self._awaited.pop(name, None)
        return not awaited

    async def _publish(self, publisher: Publisher, name: str, effects: Iterable[Decide | Release], plan: Plan) -> bool:
        """Publish effects; return False if it is unknown whether one of them is on record."""
        for effect in effects:
            await self._lead.wait_until_held()
            log.info("publishing a campaign's message", campaign=name, **_log_fields(effect))
            try:
                if isinstance(effect, Decide):
                    receipt = await publisher.order(effect.command)
                else:
                    receipt = await publisher.publish(topics.RELEASE, trigger_payload(plan, effect))
            except Retryable as exc:
                log.warning("no receipt for a campaign's message", campaign=name, reason=str(exc))
                return False
            if not self._await_record(name, effect, receipt):
                return True
        return True

    def _await_record(self, name: str, effect: Decide | Release, receipt: Receipt) -> bool:
        """Await the record that the receipt names from now on; return False if the message was refused."""
        if receipt.status is ReceiptStatus.REFUSED:
            log.error("campaign decision refused", campaign=name, reason=receipt.reason)
            self._refused_until[name] = time.monotonic() + REFUSED_S
            return False
        self._awaited.setdefault(name, set()).add(receipt.duplicate_of or receipt.seq)
        if isinstance(effect, Release):
            _metrics.RELEASED.inc(len(effect.vins))
        else:
            _metrics.DECISIONS.labels(_log_fields(effect)["do"]).inc()
        log.info("campaign decision recorded", campaign=name, seq=receipt.seq, **_log_fields(effect))
        return True

    async def _now_ms(self) -> int:
        """An instant (Unix ms) in the past by every recorder's clock, because the times in the fold come from these clocks.

        Raises:
            Retryable: the clocks of this process, of a recorder or of Redis are too far apart.
        """
        clocks = self._book.clocks_ms()
        try:
            clocks_of_all = [*clocks, wall_clock_ms(), *await self._redis_ms()]
        except RedisError:  # without Redis, nothing can be sent either
            clocks_of_all = [*clocks, wall_clock_ms()]
        apart_ms = max(clocks_of_all) - min(clocks_of_all)
        if apart_ms > MAX_CLOCK_SKEW_MS:
            raise Retryable(f"the clocks of campaigner, recorders and Redis are {apart_ms} ms apart; set them by NTP")
        return min(clocks) - MARGIN_MS

    async def _redis_ms(self) -> list[int]:
        seconds, micros = await self._queues.redis.time()
        return [int(seconds) * 1000 + int(micros) // 1000]

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(AWAITED_S if self._awaited else READ_S):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            log.warning("campaign decisions paused", reason=problem)
        self.problem = problem
        _metrics.STUCK.set(problem is not None)


def _log_fields(effect: Decide | Release) -> dict[str, Any]:
    """The fields by which the log names an effect."""
    if isinstance(effect, Decide):
        return {"do": effect.command.__struct_config__.tag}
    return {"wave": effect.wave, "step": effect.step, "vehicles": len(effect.vins)}
