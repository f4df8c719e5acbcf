"""Sends OpenLineage events to a lineage catalog: POSTs them to a URL, or appends them to a file, one event per line.

Callers do not wait. A background thread sends the events in order. If the catalog is unavailable or too slow, events are dropped.
At exit, the process waits up to `TIMEOUT_S` for unsent events.
"""

import atexit
import errno
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Full, Queue
from ssl import SSLContext
from threading import Lock, Thread
from typing import Any

import httpx

from manifold.runtime.request_failure import describe_failure
from manifold.runtime.tls import outside_context
from manifold.settings import Settings

FILE = "file://"
TIMEOUT_S = 10.0
MAX_BYTES = 256 << 10  # the maximum size of an event; Manifold's events have some ten thousand bytes
MAX_WAITING = 256  # the maximum number of unsent batches; each call of `emit` makes one batch

log = logging.getLogger(__name__)
Address = tuple[str, str, str]  # URL, token, and file of a CA


def emit(settings: Settings, events: Sequence[Mapping[str, Any]]) -> bool:
    """Queue these events for sending, without waiting; return whether they were queued. Dropped events are logged."""
    encoded = [json.dumps(event).encode() for event in events]
    if any(len(event) > MAX_BYTES for event in encoded):
        log.warning("lineage events dropped: an event has more than %d bytes", MAX_BYTES)
        return False
    return _emitter(settings).enqueue(encoded)


def flush(within_s: float | None = None) -> bool:
    """Wait until every event is sent or dropped, at most `within_s` seconds (None: `TIMEOUT_S`); return whether that happened."""
    timeout_s = TIMEOUT_S if within_s is None else within_s
    deadline = time.monotonic() + timeout_s
    flushed = [emitter.flush(deadline - time.monotonic()) for emitter in list(_emitters.values())]
    return all(flushed)


class _Emitter:
    """Sends events to one address."""

    def __init__(self, url: str, token: str, make_tls_context: Callable[[], SSLContext]) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._make_tls_context = make_tls_context
        self._waiting: Queue[list[bytes]] = Queue(MAX_WAITING)
        self._is_reachable = True  # after the last attempt; only the first failure in a row is logged
        Thread(target=self._run, name="lineage", daemon=True).start()

    def enqueue(self, events: list[bytes]) -> bool:
        """Add a batch to the queue, or log that it is dropped because the queue is full; return whether it was added."""
        try:
            self._waiting.put_nowait(events)
        except Full:
            log.warning("lineage events dropped: %d earlier batches are still unsent to MANIFOLD_LINEAGE_URL", MAX_WAITING)
            return False
        return True

    def flush(self, within_s: float) -> bool:
        """Wait until every batch is sent or dropped, like `Queue.join`, which has no timeout; return whether that happened."""
        waiting = self._waiting
        with waiting.all_tasks_done:
            done = waiting.all_tasks_done.wait_for(lambda: not waiting.unfinished_tasks, max(within_s, 0))
        if not done:
            log.warning(
                "lineage events not sent in time (%d batches): MANIFOLD_LINEAGE_URL is slow or unavailable",
                waiting.unfinished_tasks,
            )
        return done

    def _run(self) -> None:
        """Send the queued batches, one after the other, for the life of the process."""
        while True:
            events = self._waiting.get()
            try:
                self._send(events)
                self._is_reachable = True
            except Exception as exc:  # noqa: BLE001  # the next batch may succeed
                if self._is_reachable:
                    log.warning("lineage events dropped: MANIFOLD_LINEAGE_URL %s", describe_failure(exc))
                self._is_reachable = False
            finally:
                self._waiting.task_done()

    def _send(self, events: list[bytes]) -> None:
        if self._url.startswith(FILE):
            _append(Path(self._url.removeprefix(FILE)), b"".join(event + b"\n" for event in events))
            return
        headers = self._headers | {"Content-Type": "application/json"}
        with httpx.Client(headers=headers, timeout=TIMEOUT_S, verify=self._make_tls_context()) as client:
            for event in events:
                # `stream` does not read the body of the response, which may be of any size.
                with client.stream("POST", self._url, content=event) as response:
                    response.raise_for_status()


def _append(file: Path, lines: bytes) -> None:
    """Append the lines with a single write, so that they do not mix with lines of another process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(descriptor, lines) < len(lines):
            raise OSError(errno.ENOSPC, "the file has room for a part of the events only")
    finally:
        os.close(descriptor)


_emitters: dict[Address, _Emitter] = {}
_emitters_lock = Lock()


def _forget_emitters() -> None:
    """Forget the emitters in a forked child, where their threads do not exist; the parent still sends the queued events."""
    global _emitters_lock
    _emitters_lock = Lock()  # a new one, because a thread of the parent may have held the old one at the fork
    _emitters.clear()


os.register_at_fork(after_in_child=_forget_emitters)


def _emitter(settings: Settings) -> _Emitter:
    """The emitter for the catalog of the settings; created at the first call, and kept for the life of the process."""
    url = settings.lineage_url.get_secret_value()
    token = settings.lineage_token.get_secret_value()
    address = (url, token, str(settings.tls_ca))
    with _emitters_lock:
        if not _emitters:
            atexit.register(flush)
        if address not in _emitters:
            _emitters[address] = _Emitter(url, token, partial(outside_context, settings))
        return _emitters[address]
