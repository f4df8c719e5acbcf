"""The messages that publishers have sent to vehicles, kept until they are acknowledged.

A plain broker strips user properties on their way to a vehicle on MQTT 3.1.1, and does not report who published what and when.
The tap sees the packets of publisher and vehicle and matches them: by the user properties on MQTT 5, by topic and
payload (length and CRC-32) on 3.1.1, oldest first. Messages of one topic reach one vehicle in the order of their publishing.

The store is also a file of JSON lines, written before the packet goes on, so that a tap that was killed knows its messages again.
The file belongs to this process alone. It is not synced to disk, because the tap need not survive a crash of the machine.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog

from manifold.sandbox.tap.properties import PAIRS, Properties

MAX_PUBLICATIONS = (
    1_000_000  # publications at most; the oldest are forgotten first, and on 3.1.1 their acknowledgements have no seq
)
REWRITE_BYTES = 16 << 20  # the file is written anew when it has grown by this much, and doubled

log = structlog.get_logger(__name__)


class Sent(NamedTuple):
    """A PUBLISH for a vehicle, as its publisher sent it."""

    owner: bytes  # the vehicle, by the topic
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
        self.taken_by: tuple[str, ...] = ()  # clients to which the broker has delivered it


class PublicationStore:
    """The publications, by the vehicle that they are for. `path` None: in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._all: dict[int, Publication] = {}
        self._by_owner: dict[bytes, dict[int, Publication]] = {}
        self._lines: list[bytes] = []
        self._file = -1
        self._written = self._rewrite_at = 0
        self._serial, self._epoch = 0, time.time_ns() // 1000
        self.forgotten_early = 0
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            for line in _lines(path):
                self._replay(line)
            self._rewrite()

    def __len__(self) -> int:
        return len(self._all)

    def new_id(self) -> str:
        """An id as EMQX gives one: 32 upper-case hexadecimal digits, never the same twice."""
        self._serial += 1
        return f"{self._epoch:016X}{self._serial:016X}"

    def remember(self, sent: Sent, now_ms: int, *, keep: bool) -> Publication:
        """Note a publish. `keep`: in the file too; call `flush` before the packet goes on."""
        new_id = self.new_id()
        made = Publication(sent, now_ms, self._serial, new_id)
        self._add(made)
        if keep and self._path is not None:
            self._lines.append(_line(made))
        if len(self._all) > MAX_PUBLICATIONS:
            self.forgotten_early += 1
            self.forget(next(iter(self._all.values())))
        return made

    def again(self, sent: Sent) -> Publication | None:
        """The same publish, not delivered yet: its client repeats it with DUP."""
        return next((one for one in self._by_owner.get(sent.owner, {}).values() if one.sent == sent and not one.taken_by), None)

    def take(self, seen: Sent, now_ms: int, *, by_payload: bool) -> Publication | None:
        """Which publication the broker delivers: `seen` is what the client `seen.from_clientid` gets of it.

        It is found by its user properties; `by_payload`, where the broker has stripped them, by its payload.
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
        return repeated  # filters of one client overlap: the same message comes once more

    def forget(self, one: Publication) -> None:
        """Forget a publication that was acknowledged, or that had no subscriber."""
        if self._all.pop(one.serial, None) is None:
            return
        of_owner = self._by_owner[one.sent.owner]
        del of_owner[one.serial]
        if not of_owner:
            del self._by_owner[one.sent.owner]
        if self._path is not None:
            self._lines.append(b"%d\n" % one.serial)

    def forget_owner(self, owner: bytes) -> None:
        """The vehicle's session has gone, and its messages with it."""
        for one in list(self._by_owner.get(owner, {}).values()):
            self.forget(one)

    def flush(self) -> None:
        """Hand what is new to the operating system."""
        if self._lines:
            data = b"".join(self._lines)
            self._lines.clear()
            try:
                os.write(self._file, data)
                self._written += len(data)
                if self._written > self._rewrite_at:
                    self._rewrite()
            except OSError as exc:  # the disk is full: passing packets matters more than knowing them after a crash
                log.warning("publications not written", path=str(self._path), reason=str(exc), bytes=len(data))

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
            return  # the last line of a tap that was killed while writing
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
        """Only what is still remembered, in a new file that takes the old one's place."""
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
