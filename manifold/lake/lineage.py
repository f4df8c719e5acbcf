"""Sends OpenLineage events to a lineage catalog: by POST to a URL, or appended to a file, one per line.

Callers do not wait. A background thread sends the events in order, and drops them if the catalog is unavailable or too slow.
At exit, the process waits up to `TIMEOUT_S` for unsent events.
"""

import atexit
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

from manifold.runtime.tls import outside_context
from manifold.settings import Settings

FILE = "file://"
TIMEOUT_S = 10.0
MAX_BYTES = 256 << 10  # per event; ours have some ten thousand
MAX_WAITING = 256  # batches of events, one per call of `emit`, that are not sent yet

log = logging.getLogger(__name__)
Address = tuple[str, str, str]  # URL, token, and file of a CA


def emit(settings: Settings, events: Sequence[Mapping[str, Any]]) -> bool:
    """Queue these events for sending; return at once whether they were queued. The log says when events are dropped."""
    encoded = [json.dumps(event).encode() for event in events]
    if any(len(event) > MAX_BYTES for event in encoded):
        log.warning("lineage events dropped: an event has more than %d bytes", MAX_BYTES)
        return False
    return _emitter(settings).take(encoded)


def settle(within_s: float | None = None) -> bool:
    """Wait until every event is sent or dropped; False if that takes longer than `within_s` (None: `TIMEOUT_S`)."""
    until = time.monotonic() + (TIMEOUT_S if within_s is None else within_s)
    settled = [emitter.settle(until - time.monotonic()) for emitter in list(_emitters.values())]
    return all(settled)


class _Emitter:
    """Sends events to one address."""

    def __init__(self, url: str, token: str, trust: Callable[[], SSLContext]) -> None:
        self._url, self._headers, self._trust = url, {"Authorization": f"Bearer {token}"} if token else {}, trust
        self._waiting: Queue[list[bytes]] = Queue(MAX_WAITING)
        self._answers = True  # so that only changes are logged
        Thread(target=self._run, name="lineage", daemon=True).start()

    def take(self, events: list[bytes]) -> bool:
        try:
            self._waiting.put_nowait(events)
        except Full:
            log.warning("lineage events dropped: %d batches wait for MANIFOLD_LINEAGE_URL already", MAX_WAITING)
            return False
        return True

    def settle(self, within_s: float) -> bool:
        waiting = self._waiting
        with waiting.all_tasks_done:
            done = waiting.all_tasks_done.wait_for(lambda: not waiting.unfinished_tasks, max(within_s, 0))
        if not done:
            log.warning(
                "lineage events not sent in time (%d batches): MANIFOLD_LINEAGE_URL is slow or away", waiting.unfinished_tasks
            )
        return done

    def _run(self) -> None:
        while True:
            events = self._waiting.get()
            try:
                self._emit(events)
                self._answers = True
            except Exception as exc:  # noqa: BLE001  # the next may succeed
                if self._answers:  # its text may contain the URL, which may contain a password
                    log.warning("lineage events dropped: MANIFOLD_LINEAGE_URL answers %s", type(exc).__name__)
                self._answers = False
            finally:
                self._waiting.task_done()

    def _emit(self, events: list[bytes]) -> None:
        if self._url.startswith(FILE):
            _append(Path(self._url.removeprefix(FILE)), b"".join(event + b"\n" for event in events))
            return
        headers = self._headers | {"Content-Type": "application/json"}
        with httpx.Client(headers=headers, timeout=TIMEOUT_S, verify=self._trust()) as client:
            for event in events:
                with client.stream("POST", self._url, content=event) as answer:  # the body, of any size, is not read
                    answer.raise_for_status()


def _append(file: Path, lines: bytes) -> None:
    """Append with a single write, so that the lines of two runs do not mix."""
    file.parent.mkdir(parents=True, exist_ok=True)
    to = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(to, lines)
    finally:
        os.close(to)


_emitters: dict[Address, _Emitter] = {}
_making = Lock()


def _forget_emitters() -> None:
    """Forget the emitters in a forked child, where threads do not survive; its parent sends the queued events."""
    global _making
    _making = Lock()
    _emitters.clear()


os.register_at_fork(after_in_child=_forget_emitters)


def _emitter(settings: Settings) -> _Emitter:
    url, token = settings.lineage_url.get_secret_value(), settings.lineage_token.get_secret_value()
    address = url, token, str(settings.tls_ca)
    with _making:
        if not _emitters:
            atexit.register(settle)
        if address not in _emitters:
            _emitters[address] = _Emitter(url, token, partial(outside_context, settings))
        return _emitters[address]
