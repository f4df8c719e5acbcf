"""Assembles the recorder: broker → ingress → journal → enqueue → PUBACK; the journal becomes the archive."""

import asyncio
from typing import Any

import structlog
from aiohttp import web

from manifold.archive.claims import ArchiveClaims, RedisClaims
from manifold.archive.flushing import flush_journal
from manifold.archive.journal import Journal, JournalFile
from manifold.archive.journal_folder import JournalFolder
from manifold.archive.lease import Lease
from manifold.archive.recorded import RecordedSegments
from manifold.archive.recovery import last_seq as last_assigned_seq
from manifold.archive.segment_writer import SegmentWriter
from manifold.archive.state_file import StateFile
from manifold.archive.store import Archive
from manifold.archive.tail import Tail
from manifold.contracts import topics
from manifold.contracts.errors import Permanent
from manifold.contracts.seq import wall_clock_ms
from manifold.messaging.mqtt import Message, Mqtt
from manifold.queues import Policy, Queues
from manifold.recorder import _metrics, _recovery
from manifold.recorder._answers import IN_FLIGHT, Answers
from manifold.recorder._braking import Brakes
from manifold.recorder._catch_up import CatchUp
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._direct_enqueuer import DirectEnqueuer
from manifold.recorder._enqueuer import OFF, Enqueuer
from manifold.recorder._freshness import Freshness
from manifold.recorder._ingress import IngressWriter
from manifold.recorder._lake import Lake
from manifold.recorder._outcome_drain import OutcomeDrain
from manifold.recorder._parser import Incoming, Parser
from manifold.recorder._poison_messages import PoisonGuard
from manifold.recorder._receipts import Receipts
from manifold.recorder._redelivered import RedeliveredMessages
from manifold.recorder._redis import RestartGuard, open_guarded, open_plain
from manifold.recorder._replay import ReplaySource
from manifold.recorder._state import RecorderState
from manifold.recorder._stopping import done_before, until
from manifold.recorder._window import Window
from manifold.runtime.expiry import export_certificate_expiry
from manifold.runtime.http import Health, serve
from manifold.runtime.lag import watch_lag
from manifold.settings import Settings

STOP_WAIT_S = 10.0  # at shutdown, work that is not finished within this time stays in the journal

log = structlog.get_logger(__name__)


class Recorder:
    """One recorder process. `run` serves until `stop` is set, and then finishes the messages that were accepted."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        node, name = settings.node, f"recorder-{settings.node}"
        retry_s = settings.journal_retry_seconds
        self._mqtt = _client(settings, f"sdv-{name}", settings.mqtt_receive_maximum)
        run_id_guard = RestartGuard()
        policy = Policy.of(settings)
        self._redis, self._guarded_redis = open_plain(settings), open_guarded(settings, run_id_guard)
        self._lake = Lake(settings)
        self._archive = RecordedSegments(Archive(settings.archive, settings.s3))
        self._state = StateFile(settings.journal_folder, RecorderState())
        self._dedupe = DedupeWindow(round(settings.dedupe_window_seconds * 1000))
        self._parser = Parser(settings, self._dedupe)
        self._journal = Journal(
            settings.journal_folder,
            max_bytes=settings.segment_max_bytes,
            max_age_s=settings.segment_max_seconds,
            retry_s=retry_s,
            on_ended=lambda: self._writer.wake(),  # a lambda, because `_writer` is created below
        )
        self._tail = Tail(self._journal, node)
        self._writer = SegmentWriter(self._journal, self._archive, self._state.remember_seq, node=node, retry_s=retry_s)
        queues = Queues(self._guarded_redis, policy)
        self._direct_enqueuer = DirectEnqueuer(queues, self._dedupe, self._lake)
        recorded = ReplaySource(self._archive, self._journal, node)
        self._enqueuer = Enqueuer(
            direct_enqueuer=self._direct_enqueuer if settings.direct_enqueue else None,
            catch_up=CatchUp(self._direct_enqueuer, queues, self._lake, recorded, self._parser, self._journal, node),
            redis=self._redis,
            run_id_guard=run_id_guard,
            journal=self._journal,
            state=self._state,
            brakes=Brakes(Queues(self._redis, policy), recorded),
            settle=self._settle,
        )
        self._folder = JournalFolder(settings.journal_folder)
        archive_claims, redis_claims = ArchiveClaims(settings.archive, settings.s3, node), RedisClaims(self._redis, node)
        self._lease = Lease(node, self._folder, archive_claims, [redis_claims], lease_s=settings.node_lease_seconds)
        self._window = Window(settings.intake_window_bytes, on_full=self._mqtt.pause, on_free=self._mqtt.resume)
        self._poison_guard = PoisonGuard(settings.journal_folder / "in-hand", settings)
        self._redelivered = RedeliveredMessages()
        answers_mqtt = _client(settings, f"sdv-{name}-answers", IN_FLIGHT)
        self._answers = Answers(settings, answers_mqtt, next_seq=lambda: self._parser.seqs.next())
        self._ingress = IngressWriter(
            self._parser,
            self._journal,
            self._window,
            self._poison_guard,
            self._redelivered,
            self._answers,
            hand_over=self._enqueuer.put,
            answer=self._answer,
            wait_until_may_record=self._lease.wait_until_held,
        )
        self._outcomes = OutcomeDrain(Queues(self._redis, policy), name, settings.outcome_batch, self._ingress.put_outcomes)
        self._receipts = Receipts(self._mqtt, settings.receipt_prefix)
        self._freshness = Freshness(settings, self._lake)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            Permanent: the HTTP port is in use, or another recorder holds this recorder's number.
        """
        settings = self._settings
        stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        try:
            export_certificate_expiry(settings, settings.mqtt_username_recorder)
            token = settings.http_token.get_secret_value()
            routes = [web.post("/flush", self._flush), web.get("/journal", self._tail.answer)]
            async with serve(
                settings.host, settings.recorder_port, self.health, routes, token=token, tls_files=settings.http_tls_files
            ):
                self._folder.lock()
                if not await done_before(stopping, self._start()):
                    return  # stopped before the start has finished
                async with self._mqtt, self._answers, asyncio.TaskGroup() as group:
                    loops = [self._ingress.run, self._enqueuer.run, self._enqueuer.watch, self._writer.run, self._lake.keep_fresh]
                    loops += [self._freshness.watch, self._enqueuer.brakes.run]
                    tasks = [group.create_task(loop(), name=f"recorder.{loop.__qualname__}") for loop in loops]
                    tasks.append(group.create_task(watch_lag(_metrics.LOOP_LAG_SECONDS.set), name="recorder.lag"))
                    outcomes = group.create_task(self._outcomes.run(), name="recorder.outcomes")
                    self._mqtt.on_message = self._mqtt.on_unreadable = self._ingress.put
                    self._mqtt.on_resumed = self._ingress.forget_redelivered
                    self._mqtt.on_session_began = self._redelivered.session_began
                    self._mqtt.subscribe(*self._topic_filters())
                    await done_before(stopping, self._lease.renew_until_lost())
                    outcomes.cancel()  # outcomes that are not settled by now are read again at the next start
                    await self._finish()
                    for task in tasks:
                        task.cancel()
                await self._lease.release()
                if self._lease.lost is not None:
                    raise Permanent(self._lease.lost)
        finally:
            stopping.cancel()
            self._lake.close()
            self._journal.stop()
            self._folder.unlock()
            await self._guarded_redis.aclose()
            await self._redis.aclose()

    def health(self) -> Health:
        """Report healthy while messages are accepted and written to disk; other problems are only listed."""
        is_healthy = self._mqtt.ready and self._journal.problem is None
        parts = (self._lease, self._journal, self._writer, self._outcomes, self._lake, self._answers)
        problems = [part.problem for part in parts if part.problem is not None]
        problems += self._direct_enqueuer.corrupt.problems
        if not self._mqtt.ready:
            problems.insert(0, f"not connected and subscribed at {self._settings.mqtt}")
        details = {
            "direct_enqueue": self._direct_enqueue_state(),
            "problems": problems,
            "journal_files": len(self._journal.files),
            "node": self._settings.node,
        }
        return Health(is_healthy, details)

    def _direct_enqueue_state(self) -> str:
        """Return `on`, `off`, or `suspended: <reason>`."""
        suspended = self._enqueuer.suspended
        if suspended is None:
            return "on"
        return "off" if suspended == OFF else f"suspended: {suspended}"

    def _topic_filters(self) -> list[str]:
        """The topic filters to subscribe to; recorders that share the load use shared subscriptions."""
        if self._settings.shares_subscriptions:
            return [topics.shared(topics.RECORDER_GROUP, topic_filter) for topic_filter in topics.RECORDER_FILTERS]
        return list(topics.RECORDER_FILTERS)

    async def _start(self) -> None:
        """Recover the journal, take the lease, restore what detects duplicates and redelivered messages, and start to enqueue.

        Raises:
            Permanent: another recorder holds this recorder's number.
        """
        recovered = self._journal.recover()
        self._poison_guard.load()
        saved_seq = self._state.load().last_seq
        last_seq = await asyncio.to_thread(last_assigned_seq, saved_seq, recovered, self._archive, self._settings.node)
        first_seqs = [content.messages[0].seq for _, content in recovered if content.messages]
        # Everything before the recovered files is in the archive.
        self._journal.archived_seq = min(first_seqs) - 1 if first_seqs else last_seq
        self._tail.recovered = True
        self._parser.seqs = await self._lease.take(last_seq)
        archive, parser = self._archive, self._parser
        await asyncio.to_thread(_recovery.remember_triggers, self._dedupe, recovered, archive, parser, wall_clock_ms())
        await asyncio.to_thread(_recovery.restore_redelivered, self._redelivered, recovered, archive, self._settings.node)
        await self._enqueuer.start(last_seq, _recovery.first_unsettled(recovered))
        log.info(
            "recorder started",
            last_seq=last_seq,
            recovered_journal_files=len(recovered),
            direct_enqueue=self._direct_enqueue_state(),
        )

    async def _finish(self) -> None:
        """Accept no new messages, settle the accepted ones, and close the segments.

        Work that does not finish within `STOP_WAIT_S` is left to the next start.
        """
        self._mqtt.on_message = self._mqtt.on_unreadable = _leave_unacknowledged
        self._answers.stop()
        # If the lease is lost, another recorder uses the same MQTT client id. Messages that are not recorded yet can get no seq,
        # so this does not wait for them.
        has_lost_lease = self._lease.lost is not None
        if has_lost_lease:
            await self._mqtt.close()
            await self._answers.close()
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await until(lambda: (has_lost_lease or self._ingress.idle) and self._enqueuer.idle)
                self._journal.rotate()
                await until(lambda: not self._journal.files)
        except TimeoutError:
            log.warning("shutdown timed out; the next start archives the journal", journal_files=len(self._journal.files))

    def _settle(self, file: JournalFile, incoming: Incoming) -> None:
        """Answer a message of `file`; once the file is ended and all its messages are settled, have it archived."""
        file.unsettled -= 1
        self._answer(incoming)
        if file.is_ended and file.unsettled == 0:
            self._writer.wake()

    def _answer(self, incoming: Incoming) -> None:
        """Send the receipt of a message if it asks for one, acknowledge it, and release it from the window."""
        message = incoming.message
        assert message is not None  # only published messages are answered
        # Usually the receipt is sent before the acknowledgement, so that every acknowledged message has a receipt. But a broker
        # may disconnect a client because of the receipt's topic, and would then redeliver the unacknowledged message forever. So
        # the receipt of a redelivered message is sent later, after the acknowledgements of the whole group.
        if message.dup:
            asyncio.get_running_loop().call_soon(self._receipts.send, message, incoming.receipt)
        else:
            self._receipts.send(message, incoming.receipt)
        self._mqtt.ack(message)
        self._window.release(message)

    async def _flush(self, _: web.Request) -> web.Response:
        """Close the open segments, and respond with their paths once they are in the archive."""
        return await flush_journal(self._journal, self._writer, self._settings.node)


def _client(settings: Settings, client_id: str, receive_maximum: int) -> Mqtt:
    """Create a client whose session the broker keeps while this recorder is not connected."""
    return Mqtt(
        settings.mqtt,
        client_id,
        username=settings.mqtt_username_recorder,
        password=settings.mqtt_password.get_secret_value() or None,
        clean_start=False,
        session_expiry_s=settings.mqtt_session_expiry_seconds,
        receive_maximum=receive_maximum,
        tls=settings.tls_files(settings.mqtt_username_recorder),
    )


def _leave_unacknowledged(_: Message) -> None:
    """Ignore the message: the broker keeps it for the next start, or gives it to another recorder."""
