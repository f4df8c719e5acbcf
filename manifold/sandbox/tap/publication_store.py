"""Published messages for vehicles, kept until they are acknowledged.

A plain broker strips user properties for vehicles on MQTT 3.1.1, and does not report the publisher and time of a message. The tap
sees the publisher's PUBLISH and the PUBLISH that the vehicle receives, and matches the two. Both must have the same topic. On
MQTT 5 their user properties must be equal; on MQTT 3.1.1 their payloads (size and CRC-32). The oldest match wins, because
messages on one topic reach a vehicle in publish order.

The publications are also stored in a file of JSON lines, so that a tap that is restarted after a kill still knows them. A line is
written before its packet is forwarded. Only this process uses the file. It is not fsynced, because the tap need not survive a
crash of the machine.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog

from manifold.sandbox.tap.properties import PAIRS, Properties

MAX_PUBLICATIONS = 1_000_000  # beyond this the oldest is evicted; a vehicle on MQTT 3.1.1 then acknowledges it without a seq
REWRITE_BYTES = 16 << 20  # the file is compacted when it has doubled and grown by this much

log = structlog.get_logger(__name__)


class Sent(NamedTuple):
    """A PUBLISH for a vehicle, sent by its publisher, or by the broker to a client."""

    owner: bytes  # client id of the vehicle that the topic names
    topic: bytes
    from_clientid: str  # the publisher; if the broker is the sender, the client that receives it
    props: Properties
    crc: int  # of the payload
    size: int  # of the payload, bytes


class Publication:
    """One message from a publisher to a vehicle."""

    __slots__ = ("expires_at_ms", "id", "pairs", "received_at_ms", "received_by", "sent", "serial")

    def __init__(self, sent: Sent, received_at_ms: int, serial: int, message_id: str) -> None:
        self.sent = sent
        self.received_at_ms = received_at_ms
        self.serial = serial
        self.id = message_id
        self.pairs: list[dict[str, str]] = sent.props.get(PAIRS, [])
        expiry = sent.props.get("Message-Expiry-Interval")
        self.expires_at_ms = None if expiry is None else received_at_ms + expiry * 1000
        self.received_by: tuple[str, ...] = ()  # client ids


class PublicationStore:
    """The publications, by vehicle. If `path` is None, they are kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._all: dict[int, Publication] = {}  # by serial number, oldest first
        self._by_owner: dict[bytes, dict[int, Publication]] = {}
        self._lines: list[bytes] = []  # not yet written to the file
        self._file = -1  # file descriptor; -1: not open
        self._file_bytes = self._compact_at_bytes = 0
        self._serial = 0  # of the newest publication or message id
        self._epoch = time.time_ns() // 1000  # part of each message id, so that no two processes make the same one
        self.forgotten_early = 0  # publications evicted beyond MAX_PUBLICATIONS
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            for line in _read_lines(path):
                self._replay(line)
            self._compact()

    def __len__(self) -> int:
        return len(self._all)

    def new_id(self) -> str:
        """Return a unique id in EMQX's format: 32 upper-case hex digits."""
        self._serial += 1
        return f"{self._epoch:016X}{self._serial:016X}"

    def remember(self, sent: Sent, now_ms: int, *, persist: bool) -> Publication:
        """Store a PUBLISH; with `persist` also in the file, at the next `flush`. Call `flush` before forwarding the packet."""
        message_id = self.new_id()
        publication = Publication(sent, now_ms, self._serial, message_id)
        self._add(publication)
        if persist and self._path is not None:
            self._lines.append(_line(publication))
        if len(self._all) > MAX_PUBLICATIONS:
            oldest = next(iter(self._all.values()))
            self.forgotten_early += 1
            self.forget(oldest)
        return publication

    def find_undelivered(self, sent: Sent) -> Publication | None:
        """Return the stored publication of which this PUBLISH is a repetition, if no client has received it yet; else None."""
        for publication in self._by_owner.get(sent.owner, {}).values():
            if publication.sent == sent and not publication.received_by:
                return publication
        return None

    def match_delivery(self, received: Sent, now_ms: int, *, by_payload: bool) -> Publication | None:
        """Find the publication that the broker delivers with the PUBLISH `received`, and mark it as received by the client.

        Matches by user properties, or with `by_payload`, because the broker has stripped them, by size and CRC of the payload. If
        the client has already received every match, because its filters overlap, returns the newest one again. None: no
        publication matches.
        """
        client_id = received.from_clientid
        pairs = received.props.get(PAIRS, [])
        already_received = None
        for publication in self._by_owner.get(received.owner, {}).values():
            sent = publication.sent
            has_same_payload = sent.crc == received.crc and sent.size == received.size
            is_match = has_same_payload if by_payload else publication.pairs == pairs
            if not is_match or sent.topic != received.topic:
                continue
            expires_at_ms = publication.expires_at_ms
            if expires_at_ms is not None and now_ms > expires_at_ms + 1000:  # a second more: the broker counts whole seconds
                continue
            if client_id not in publication.received_by:
                publication.received_by += (client_id,)
                return publication
            already_received = publication
        return already_received

    def forget(self, publication: Publication) -> None:
        """Forget a publication that was acknowledged, or had no subscriber."""
        if self._all.pop(publication.serial, None) is None:
            return  # it was forgotten before, perhaps because the store was full
        owner = publication.sent.owner
        of_owner = self._by_owner[owner]
        del of_owner[publication.serial]
        if not of_owner:
            del self._by_owner[owner]
        if self._path is not None:
            self._lines.append(b"%d\n" % publication.serial)

    def forget_owner(self, owner: bytes) -> None:
        """Forget the messages of a vehicle whose session has ended."""
        for publication in list(self._by_owner.get(owner, {}).values()):
            self.forget(publication)

    def flush(self) -> None:
        """Write new lines to the file, without fsync; compact the file when it has grown enough."""
        if self._lines:
            data = b"".join(self._lines)
            self._lines.clear()
            try:
                os.write(self._file, data)
                self._file_bytes += len(data)
                if self._file_bytes > self._compact_at_bytes:
                    self._compact()
            except OSError as exc:  # the disk is full: forwarding packets matters more than recovery after a kill
                log.warning("publications not written to disk", path=str(self._path), reason=str(exc), bytes=len(data))

    def close(self) -> None:
        """Flush and close the file."""
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1

    def _add(self, publication: Publication) -> None:
        self._all[publication.serial] = publication
        self._by_owner.setdefault(publication.sent.owner, {})[publication.serial] = publication

    def _replay(self, line: bytes) -> None:
        """Apply a line of the file: an array is a publication, a number the serial number of one that was forgotten."""
        try:
            record: Any = orjson.loads(line)
        except ValueError:
            return  # a partial last line
        if isinstance(record, int):
            forgotten = self._all.get(record)
            if forgotten is not None:
                self.forget(forgotten)
            return
        serial, owner, topic, client_id, received_at_ms, props, crc, size, message_id = record
        sent = Sent(owner.encode(), topic.encode(), client_id, props, crc, size)
        self._add(Publication(sent, received_at_ms, serial, message_id))
        self._serial = max(self._serial, serial)

    def _compact(self) -> None:
        """Compact the file: write the remaining publications to a new file that replaces it."""
        assert self._path is not None
        new_file = self._path.with_suffix(".new")
        data = b"".join(map(_line, self._all.values()))
        new_file.write_bytes(data)
        new_file.replace(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines.clear()  # the new file already reflects them
        self._file_bytes = len(data)
        self._compact_at_bytes = 2 * len(data) + REWRITE_BYTES


def _read_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file


def _line(publication: Publication) -> bytes:
    """Return the publication as a line for the file; `_replay` reads the fields in this order."""
    sent = publication.sent
    record = [
        publication.serial,
        sent.owner.decode("utf-8", "replace"),
        sent.topic.decode("utf-8", "replace"),
        sent.from_clientid,
        publication.received_at_ms,
        sent.props,
        sent.crc,
        sent.size,
        publication.id,
    ]
    return orjson.dumps(record) + b"\n"
