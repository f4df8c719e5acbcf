"""Published messages for vehicles, kept until they are acknowledged.

A plain broker strips user properties for vehicles on MQTT 3.1.1, and does not report the publisher and time of a message. The tap
sees the packets of publisher and vehicle and matches them: by user properties on MQTT 5, by topic and payload (length and CRC-32)
on 3.1.1, oldest first. Messages on one topic reach a vehicle in publish order.

The store is also a file of JSON lines, written before the packet is forwarded, so that a tap restarted after a kill knows its
messages. Only this process uses the file. It is not fsynced, because the tap need not survive a crash of the machine.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog

from manifold.sandbox.tap.properties import PAIRS, Properties

MAX_PUBLICATIONS = 1_000_000  # the oldest are evicted first; on 3.1.1 their acknowledgements then have no seq
REWRITE_BYTES = 16 << 20  # the file is compacted when it has doubled and grown by this much

log = structlog.get_logger(__name__)


class Sent(NamedTuple):
    """A PUBLISH for a vehicle, as sent by its publisher."""

    owner: bytes  # the vehicle named in the topic
    topic: bytes
    from_clientid: str
    props: Properties
    crc: int  # of the payload
    size: int  # of the payload, bytes


class Publication:
    """One message from a publisher to a vehicle."""

    __slots__ = ("expires_at_ms", "id", "pairs", "received_at_ms", "sent", "serial", "taken_by")

    def __init__(self, sent: Sent, received_at_ms: int, serial: int, message_id: str) -> None:
        self.sent, self.received_at_ms, self.serial, self.id = sent, received_at_ms, serial, message_id
        self.pairs: list[dict[str, str]] = sent.props.get(PAIRS, [])
        expiry = sent.props.get("Message-Expiry-Interval")
        self.expires_at_ms = None if expiry is None else received_at_ms + expiry * 1000
        self.taken_by: tuple[str, ...] = ()  # clients that have received it


class PublicationStore:
    """The publications by vehicle. `path` None: in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._all: dict[int, Publication] = {}
        self._by_owner: dict[bytes, dict[int, Publication]] = {}
        self._lines: list[bytes] = []
        self._file = -1
        self._written = self._rewrite_at = 0
        self._serial = 0  # of the newest publication or id
        self._epoch = time.time_ns() // 1000  # makes the ids of each process new
        self.forgotten_early = 0
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            for line in _lines(path):
                self._replay(line)
            self._rewrite()

    def __len__(self) -> int:
        return len(self._all)

    def new_id(self) -> str:
        """Return a unique id in EMQX's format: 32 upper-case hex digits."""
        self._serial += 1
        return f"{self._epoch:016X}{self._serial:016X}"

    def remember(self, sent: Sent, now_ms: int, *, keep: bool) -> Publication:
        """Record a publish. `keep`: in the file too; call `flush` before forwarding the packet."""
        new_id = self.new_id()
        made = Publication(sent, now_ms, self._serial, new_id)
        self._add(made)
        if keep and self._path is not None:
            self._lines.append(_line(made))
        if len(self._all) > MAX_PUBLICATIONS:
            self.forgotten_early += 1
            self.forget(next(iter(self._all.values())))
        return made

    def repeated(self, sent: Sent) -> Publication | None:
        """Return the undelivered publication that the client repeats with DUP, if there is one."""
        return next((one for one in self._by_owner.get(sent.owner, {}).values() if one.sent == sent and not one.taken_by), None)

    def take(self, seen: Sent, now_ms: int, *, by_payload: bool) -> Publication | None:
        """Find the publication that the broker delivers; `seen` is the PUBLISH received by the client `seen.from_clientid`.

        Matches by user properties; with `by_payload`, if the broker has stripped them, by payload.
        """
        client_id, pairs, repeated = seen.from_clientid, seen.props.get(PAIRS, []), None
        for one in self._by_owner.get(seen.owner, {}).values():
            sent = one.sent
            same = (sent.crc == seen.crc and sent.size == seen.size) if by_payload else one.pairs == pairs
            if not same or sent.topic != seen.topic:
                continue
            if one.expires_at_ms is not None and now_ms > one.expires_at_ms + 1000:  # the broker counts in whole seconds
                continue
            if client_id not in one.taken_by:
                one.taken_by += (client_id,)
                return one
            repeated = one
        return repeated  # delivered again, because filters of the client overlap

    def forget(self, one: Publication) -> None:
        """Forget a publication that was acknowledged or had no subscriber."""
        if self._all.pop(one.serial, None) is None:
            return
        of_owner = self._by_owner[one.sent.owner]
        del of_owner[one.serial]
        if not of_owner:
            del self._by_owner[one.sent.owner]
        if self._path is not None:
            self._lines.append(b"%d\n" % one.serial)

    def forget_owner(self, owner: bytes) -> None:
        """Forget the messages of a vehicle whose session has ended."""
        for one in list(self._by_owner.get(owner, {}).values()):
            self.forget(one)

    def flush(self) -> None:
        """Write new lines to the file, without fsync."""
        if self._lines:
            data = b"".join(self._lines)
            self._lines.clear()
            try:
                os.write(self._file, data)
                self._written += len(data)
                if self._written > self._rewrite_at:
                    self._rewrite()
            except OSError as exc:  # the disk is full: forwarding packets matters more than recovery after a kill
                log.warning("publications not written to disk", path=str(self._path), reason=str(exc), bytes=len(data))

    def close(self) -> None:
        """Flush and close the file."""
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1

    def _add(self, one: Publication) -> None:
        self._all[one.serial] = one
        self._by_owner.setdefault(one.sent.owner, {})[one.serial] = one

    def _replay(self, line: bytes) -> None:
        try:
            record: Any = orjson.loads(line)
        except ValueError:
            return  # a partial last line
        if isinstance(record, int):
            gone = self._all.get(record)
            if gone is not None:
                self.forget(gone)
            return
        serial, owner, topic, client_id, at_ms, props, crc, size, message_id = record
        sent = Sent(owner.encode(), topic.encode(), client_id, props, crc, size)
        self._add(Publication(sent, at_ms, serial, message_id))
        self._serial = max(self._serial, serial)

    def _rewrite(self) -> None:
        """Compact the file: write the remaining publications to a new file that replaces it."""
        assert self._path is not None
        fresh = self._path.with_suffix(".new")
        data = b"".join(map(_line, self._all.values()))
        fresh.write_bytes(data)
        fresh.replace(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines.clear()
        self._written, self._rewrite_at = len(data), REWRITE_BYTES + 2 * len(data)


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file


def _line(one: Publication) -> bytes:
    owner, topic, *sent = one.sent
    names = [owner.decode("utf-8", "replace"), topic.decode("utf-8", "replace")]
    return orjson.dumps([one.serial, *names, sent[0], one.received_at_ms, *sent[1:], one.id]) + b"\n"
