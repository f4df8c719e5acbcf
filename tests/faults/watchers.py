"""Witnesses that report to the history: the vehicles, Redis itself, and the archive at the end."""

import asyncio
import contextlib
import json
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pyarrow.parquet as pq

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.tls import TlsFiles
from manifold.contracts.topics import ecq_of
from manifold.runtime.tls import client_context, verified
from manifold.sandbox.fleet import Received
from manifold.settings import Settings
from tests.faults.history import History, Line, What

_LINE_BYTES = 1 << 24  # enqueueing for very many vehicles is one line of MONITOR
_AGAIN_S = 0.05
_OWNER = re.compile(r"q:\{(?P<vin>[^}]+)\}:(?P<kind>pending|parked|inflight)")
_ECQ = re.compile(r"q:\{(?P<id>[^}]+)\}:ecq:(?P<kind>inflight|state)")
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"')


class Vehicles:
    """A witness of the fleet."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.delivered: set[tuple[str, str]] = set()  # (vehicle, request), once or more
        self.delivered_of_ecq = 0  # messages of compacted queues including copies

    def received(self, message: Received) -> None:
        """The vehicle's application received a message."""
        queue, name = _queue_and_name(message)
        if queue == message.vin:
            self.delivered.add((queue, name))
        else:
            self.delivered_of_ecq += 1
        self._history.tell(Line(time.time(), What.DELIVERED, queue, message.seq, name, message.dup, message.payload_sha1))

    def acknowledged(self, message: Received) -> None:
        """The vehicle sent a PUBACK."""
        queue, name = _queue_and_name(message)
        self._history.tell(Line(time.time(), What.ACKNOWLEDGED, queue, message.seq, name, sha1=message.payload_sha1))

    def changed(self, vin: str, what: str) -> None:
        """The vehicle connected or disconnected."""
        kind = What.CAME if what == "online" else What.GONE
        self._history.tell(Line(time.time(), kind, vin, note="" if kind is What.CAME else what))


def _queue_and_name(message: Received) -> tuple[str, str]:
    """The queue of a message, and its request id or key."""
    if (of := ecq_of(message.topic)) is not None:
        return ecq_queue(of[0]), of[1]
    return message.vin, message.request_id or message.topic


class Monitor:
    """Redis's MONITOR: every command that changes a queue, in Redis's order and by its clock. Use as `async with Monitor(…)`."""

    def __init__(self, settings: Settings, history: History) -> None:
        self._settings, self._history = settings, history
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Monitor":
        self._task = asyncio.create_task(self._watch(), name="faults.monitor")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # Redis is killed in every run
                await self._listen()
            await asyncio.sleep(_AGAIN_S)

    async def _listen(self) -> None:
        of, tls = self._settings, None
        if of.tls:
            shown = of.local_tls_options("ca", "")
            tls = client_context(TlsFiles(shown["ca"], shown["certfile"], shown["keyfile"]))
        reader, writer = await asyncio.open_connection(of.host, of.redis_port, limit=_LINE_BYTES, ssl=tls)
        try:
            if tls is not None:
                url = urlsplit(of.redis)
                writer.write(f"AUTH {url.username} {url.password}\r\n".encode())
            writer.write(b"MONITOR\r\n")
            while line := await reader.readline():
                for told in lines_of(line.decode(errors="replace")):
                    self._history.tell(told)
        finally:
            writer.close()


def lines_of(monitored: str) -> list[Line]:
    """Parse one line of MONITOR into lines about entries: `+<seconds> [<db> <who>] "<command>" "<argument>" …`."""
    if not (
        ":ecq:state" in monitored
        or ":inflight" in monitored
        or ":pending" in monitored
        or ":parked" in monitored
        or f'"{keys.OUTCOMES}"' in monitored
    ):
        return []
    words = [json.loads(word) for word in _WORD.findall(monitored) if "\\x" not in word]
    at = float(monitored[1:].split(" ", 1)[0])
    match [words[0].upper(), *words[1:]]:
        case ["XADD", keys.OUTCOMES, *_, record] if record.startswith('{"client_id"'):
            ack = EcqAck.from_wire(record.encode())
            return [Line(at, What.ENDED, ecq_queue(ack.client_id), ack.seq, note="passed over" if ack.passed_over else "")]
        case ["HSET", key, name, value, *_] if owner := _ECQ.fullmatch(key):
            what = {"seq": What.PUBLISHED, "epoch": What.REWOUND, "acked_seq": What.POSITION}.get(name)
            return [] if what is None else [Line(at, what, ecq_queue(owner["id"]), int(value))]
        case ["XADD", keys.OUTCOMES, *_, record]:
            outcome = OutcomeRecord.from_wire(record.encode())
            return [Line(at, What.ENDED, outcome.vin, outcome.seq, note=outcome.outcome.value)]
        case ["ZADD", key, *arguments] if (owner := _OWNER.fullmatch(key)) and owner["kind"] != "inflight":
            what = What.ENQUEUED if owner["kind"] == "pending" else What.PARKED
            seqs = [word for word in arguments if word.isdecimal()][::2]
            return [Line(at, what, owner["vin"], int(seq)) for seq in seqs]
        case ["HSET", key, "seq", seq, *_] if (owner := _OWNER.fullmatch(key)) and owner["kind"] == "inflight":
            return [Line(at, What.PUBLISHED, owner["vin"], int(seq))]
    return []


def tell_recorded(settings: Settings, history: History) -> None:
    """Report every outcome in the archive, once the recorder has closed its segments.

    Raises:
        httpx.HTTPError: the recorder did not close them.
    """
    url = settings.http(settings.recorder_port)
    httpx.post(f"{url}/flush", timeout=60, verify=verified(settings, url)).raise_for_status()
    archive = Path(settings.archive.removeprefix("file://"))
    for segment in sorted((archive / Stream.OUTCOME).glob("dt=*/hour=*/*.parquet")):
        for payload in pq.ParquetFile(segment).read(["payload"]).column("payload").to_pylist():
            outcome = OutcomeRecord.from_wire(payload)
            history.tell(Line(outcome.ended_ms / 1000, What.RECORDED, outcome.vin, outcome.seq, note=outcome.outcome.value))
