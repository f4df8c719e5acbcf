"""Messages that may kill the process that parses them, by exhausting memory or by crashing a library.

After such a crash, the next recorder parses that message in a child process.

A message that only raises a Python exception is refused (`manifold.recorder._parser`). But a message that kills the recorder is
not acknowledged, so the broker redelivers it, and it would kill every later recorder.
"""

import asyncio
import hashlib
import mmap
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import structlog

from manifold.contracts.messages import SHOWN, Refused
from manifold.messaging.mqtt import Message
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._kinds import stream_of
from manifold.recorder._parser import Parsed, Parser
from manifold.settings import Settings

DIGEST_BYTES = 16
MAX_REMEMBERED = 64  # messages that may have killed a process
KILLED = "parsing it crashed the process twice; inspect its payload in quarantine before publishing it again"

log = structlog.get_logger(__name__)


class PoisonGuard:
    """Keeps the digest of the message being parsed in a memory-mapped file, which survives a crash of the process.

    So the next process knows which message was being parsed when this process died. Call `load` first.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path, self._settings = path, settings
        self._memory: mmap.mmap  # of the file at `path`; mapped by `load`
        self._suspects: set[bytes] = set()  # digests of the messages that earlier processes were parsing when they died

    def load(self) -> None:
        """Map the file, and read which messages earlier processes were parsing when they died."""
        # The first slot holds the digest of the message being parsed; the others hold those of suspects, the latest first.
        size = DIGEST_BYTES * (1 + MAX_REMEMBERED)
        with self._path.open("a+b") as file:
            os.ftruncate(file.fileno(), size)
            self._memory = mmap.mmap(file.fileno(), size)
        slots = [self._memory[start : start + DIGEST_BYTES] for start in range(0, size, DIGEST_BYTES)]
        empty = bytes(DIGEST_BYTES)
        last_parsed, *suspects = slots
        if last_parsed != empty:  # the previous process died before it cleared the first slot
            other_suspects = [digest for digest in suspects if digest != last_parsed]
            suspects = [last_parsed, *other_suspects][:MAX_REMEMBERED]
            self._memory[:] = b"".join([empty, *suspects]).ljust(size, b"\0")
            log.warning(
                "previous process died while parsing a message; if it comes again, it is parsed in a child process",
                message_digest=last_parsed.hex(),
            )
        self._suspects = set(suspects) - {empty}

    def begin_parsing(self, message: Message) -> None:
        """Write the digest of this message to the file, because its parsing begins."""
        self._memory[:DIGEST_BYTES] = _digest(message)

    def end_parsing(self) -> None:
        """Clear the digest in the file, because parsing has ended."""
        self._memory[:DIGEST_BYTES] = bytes(DIGEST_BYTES)

    def is_suspect(self, message: Message) -> bool:
        """Whether an earlier process died while it parsed this message."""
        return bool(self._suspects) and _digest(message) in self._suspects

    async def parse(self, message: Message) -> Parsed:
        """Parse the message in a child process; refuse it if parsing kills that process."""
        with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
            parsing = pool.submit(_parse, self._settings, message.topic, message.payload)
            try:
                return await asyncio.wrap_future(parsing)
            except BrokenProcessPool:
                topic, payload_bytes = message.topic[:SHOWN], len(message.payload)
                log.exception(
                    "message refused: it crashed the child process that parsed it", topic=topic, payload_bytes=payload_bytes
                )
                return stream_of(message.topic), Refused(KILLED)


def _parse(settings: Settings, topic: str, payload: bytes) -> Parsed:
    return Parser(settings, DedupeWindow(window_ms=1)).parse(topic, payload)


def _digest(message: Message) -> bytes:
    digest = hashlib.blake2b(message.topic.encode(), digest_size=DIGEST_BYTES)
    digest.update(message.payload)
    return digest.digest()
