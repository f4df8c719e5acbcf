"""Many verbs in one round trip."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

from contracts import keys
from contracts.outcomes import OutcomeRecord
from contracts.topics import Sign
from queues import _replies, _verbs
from queues._cluster import is_cluster
from queues._connection import exchange
from queues._spoilt import is_spoilt
from queues._verbs import Args, Policy, ReleaseReason

Parser = Callable[[Any], Any]
FIRST, THEN, LAST = range(3)  # one Redis keeps the order of a batch; the nodes of a cluster must be told what waits for what


class Batch:
    """Collects verbs; `run` sends them together and answers in the order in which they were added.

    Not a transaction: each verb is atomic by itself. Scripts that Redis has forgotten are loaded, and only those verbs go again.
    """

    def __init__(self, redis: Redis, policy: Policy) -> None:
        self._redis, self._policy, self._is_cluster = redis, policy, is_cluster(redis)
        self._commands: list[Args] = []
        self._stages: list[int] = []
        self._parsers: list[Parser] = []
        self._insists: list[int] = []
        self._ahead: list[tuple[OutcomeRecord, bool]] = []  # outcomes to be told before their entries end; also of one in flight?

    def __len__(self) -> int:
        return len(self._commands)

    def enqueue(self, owner: str, entries: list[tuple[int, str]], now_ms: int) -> None:
        """Answers `EnqueueReply`. `entries` are (seq, request_id), oldest first."""
        self.add(_verbs.enqueue(self._policy, owner, entries, now_ms), _replies.enqueue_reply)

    def express(self, owner: str, seq: int, request_id: str, data_id: str, digest: str, now_ms: int, *, loading: bytes) -> None:
        """Answers `EnqueueReply`, its word also `unloaded` or `duplicate`; wakes a dispatcher by itself. Not for a cluster."""
        command = _verbs.express(self._policy, owner, seq, request_id, data_id, digest, now_ms, loading)
        self.add(command, _replies.enqueue_reply)

    def claim(self, owner: str, now_ms: int) -> None:
        """Answers `Claim`."""
        self.add(_verbs.claim(self._policy, owner, now_ms), _replies.claim_reply)

    def ack(self, record: OutcomeRecord, now_ms: int, *, request_id: str = "", claim_next: bool = True) -> None:
        """Answers `AckReply`. The entry ends as `record` says, which goes to the recorder, unless it had ended before.

        When it was published and how often is completed from the queue, where `record` does not say how often.
        """
        told = self._tell_first([record], also_in_flight=True)
        command = _verbs.ack(self._policy, record, now_ms, request_id=request_id, claim_next=claim_next, told=told)
        self.add(command, _replies.ack_reply)

    def ended(self, record: OutcomeRecord, now_ms: int) -> None:
        """Answers `AckReply`. The entry ends as `record` says, which the recorder has, and nothing is claimed."""
        self.add(_verbs.ack(self._policy, record, now_ms, claim_next=False, told=True), _replies.ack_reply)

    def over(self, owner: str, now_ms: int) -> None:
        """Answers a `Claim` that claims nothing, and names the entries that must not be sent any more."""
        self.add(_verbs.over(self._policy, owner, now_ms), _replies.claim_reply)

    def end(self, owner: str, records: Sequence[OutcomeRecord], now_ms: int, *, claim_next: bool = False) -> None:
        """Answers `EndReply`. Entries of one owner end as `records` say; the recorder gets those of what ends only now."""
        told = self._tell_first(records, also_in_flight=False)
        self.add(_verbs.end_as(self._policy, owner, records, now_ms, claim_next=claim_next, told=told), _replies.end_reply)

    def release(self, owner: str, seq: int, now_ms: int, reason: ReleaseReason, claimed_ms: int | None = None) -> None:
        """Answers `ReleaseReply`. `claimed_ms`, the time given to a claim, leaves any later claim of `seq` alone."""
        self.add(_verbs.release(self._policy, owner, seq, now_ms, reason, claimed_ms), _replies.release_reply)

    def heard(self, owner: str, sign: Sign, now_ms: int, *, claim_next: bool = True) -> None:
        """An online or a heartbeat. Answers `TouchReply`."""
        del sign  # both say the same: the vehicle is here
        self._touch(owner, now_ms, claim_next, "heard")

    def connected(
        self, owner: str, at_ms: int, clean_start: bool, expiry_s: int, now_ms: int, *, claim_next: bool = False
    ) -> None:
        """Answers `TouchReply`: a clean start, or an expired session, releases what was in flight."""
        self._touch(owner, now_ms, claim_next, "connected", at_ms, "1" if clean_start else "0", expiry_s)

    def disconnected(self, owner: str, connected_at_ms: int, at_ms: int, expiry_s: int | None, now_ms: int) -> None:
        """Answers `TouchReply`."""
        self._touch(owner, now_ms, False, "disconnected", connected_at_ms, at_ms, "" if expiry_s is None else expiry_s)

    def subscribed(self, owner: str, on: bool, now_ms: int, *, claim_next: bool = False) -> None:
        """Answers `TouchReply`."""
        self._touch(owner, now_ms, claim_next, "subscribed" if on else "unsubscribed")

    def park(self, owner: str, seq: int, data_id: str, now_ms: int) -> int:
        """Let an entry step aside until its data comes; the place of the reply: the `Claim` of the entry that follows.

        Noted as waiting before and after: an arrival between the two notes may have struck the first one out.
        """
        notes = _verbs.waits(self._policy, owner, seq, data_id, now_ms)
        for note in notes:
            self.insist(note, int, FIRST)
        self.add(_verbs.park(self._policy, owner, seq, now_ms), _replies.park_reply)
        for note in notes:
            self.insist(note, int, LAST)
        return len(self) - 1 - len(notes)

    def unpark(self, owner: str, seqs: Sequence[str], now_ms: int) -> None:
        """Answers `EnqueueReply`. No seqs: all that this owner has parked."""
        self.add(_verbs.unpark(self._policy, owner, seqs, now_ms), _replies.enqueue_reply)

    def deadline(self, owner: str, deadline_ms: int) -> None:
        """Answers a number that means nothing."""
        self.add(_verbs.deadline(self._policy, owner, deadline_ms), int)

    def add(self, command: Args, parser: Parser, stage: int = THEN) -> None:
        """Any other command, with what reads its reply. In a cluster, those of one stage are carried out side by side."""
        self._commands.append(command)
        self._stages.append(stage)
        self._parsers.append(parser)

    def insist(self, command: Args, parser: Parser, stage: int = THEN) -> None:
        """A small command of one key (after its name) that is carried out also where Redis is out of memory."""
        self._insists.append(len(self._commands))
        self.add(command, parser, stage)

    async def run(self, *, tolerant: bool = False) -> list[Any]:
        """Sends everything and empties the batch; one parsed reply a verb.

        `tolerant`: where somebody has put another type under a key, the error takes the place of that verb's reply (`is_spoilt`),
        and all others are as they would be.

        Raises:
            redis.RedisError: the connection failed (what was sent may have happened), or Redis refused a command.
        """
        if self._ahead:
            await self._tell_ahead()
        commands, parsers, stages, insists = self._commands, self._parsers, self._stages, self._insists
        self._commands, self._parsers, self._stages, self._insists = [], [], [], []
        raw = await self._send_in_stages(commands, stages) if self._is_cluster else await self._send(commands)
        denied = [place for place in insists if isinstance(raw[place], OutOfMemoryError)]
        if denied:
            again = await self._send([_verbs.insist(commands[place]) for place in denied])
            for place, reply in zip(denied, again, strict=True):
                raw[place] = reply
        for reply in raw:
            if isinstance(reply, RedisError) and not (tolerant and is_spoilt(reply)):
                raise reply
        return [reply if isinstance(reply, RedisError) else parse(reply) for parse, reply in zip(parsers, raw, strict=True)]

    def _tell_first(self, records: Sequence[OutcomeRecord], *, also_in_flight: bool) -> bool:
        """Whether these outcomes go to the recorder before their entries end: in a cluster no script reaches both."""
        if self._is_cluster:
            self._ahead += [(record, also_in_flight) for record in records]
        return self._is_cluster

    async def _tell_ahead(self) -> None:
        """A crash after this repeats an outcome, and loses none."""
        ahead, self._ahead = self._ahead, []
        looking, telling = Batch(self._redis, self._policy), Batch(self._redis, self._policy)
        for record, _ in ahead:
            looking.add(_verbs.look(record.vin, record.seq), _replies.look_reply)
        for (record, also_in_flight), found in zip(ahead, await looking.run(), strict=True):
            if found.ended is None and (also_in_flight or found.published_ms is None):
                telling.insist(("XADD", keys.OUTCOMES, "*", "o", _completed(record, found).to_wire()), bytes)
        try:
            if telling:
                await telling.run()
        except ResponseError as exc:
            raise ResponseError(f"OUTCOMES cannot be recorded: {exc}") from exc

    async def _send_in_stages(self, commands: list[Args], stages: list[int]) -> list[Any]:
        raw: list[Any] = [None] * len(commands)
        for stage in sorted(set(stages)):
            places = [place for place, its in enumerate(stages) if its == stage]
            for place, reply in zip(places, await self._send([commands[place] for place in places]), strict=True):
                raw[place] = reply
        return raw

    async def _send(self, commands: list[Args]) -> list[Any]:
        raw = await self._send_once(commands)
        forgotten = [place for place, reply in enumerate(raw) if isinstance(reply, NoScriptError)]
        if forgotten:
            for script in _verbs.SCRIPTS:
                await self._redis.script_load(script.text)
            for place, reply in zip(forgotten, await self._send_once([commands[place] for place in forgotten]), strict=True):
                raw[place] = reply
        return raw

    async def _send_once(self, commands: list[Args]) -> list[Any]:
        if not self._is_cluster:
            return await exchange(self._redis, commands)
        pipe = self._redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return await pipe.execute(raise_on_error=False)

    def _touch(self, owner: str, now_ms: int, claim_next: bool, *sign: Any) -> None:
        self.add(_verbs.touch(self._policy, owner, now_ms, claim_next, *sign), _replies.touch_reply)


def _completed(record: OutcomeRecord, found: _replies.LookReply) -> OutcomeRecord:
    """As ack.lua completes it."""
    if record.attempts is not None:
        return record
    return replace(record, attempts=found.attempts, dispatched_ms=found.published_ms or record.dispatched_ms)
