"""What a recorder remembers after a restart."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts import topics
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.messaging.mqtt import Message
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._parser import Parser
from manifold.recorder._recovery import remember_triggers
from manifold.settings import Settings

INLINE = {"base64": base64.b64encode(b"hello").decode(), "text": "hello, world"}


@pytest.mark.parametrize("encoding", INLINE)
def test_a_trigger_of_another_program_is_not_recorded_twice(tmp_path: Path, encoding: str) -> None:
    settings = Settings(home=tmp_path, inline_encoding=encoding)
    archive = RecordedSegments(Archive(f"file://{tmp_path}/archive", settings.s3))
    payload = json.dumps({"ids": ["V1"], "request_id": "r", "data": INLINE[encoding]}).encode()
    seqs = SeqSource(1)
    foreign = Envelope(seqs.next(), datetime.now(UTC), Stream.TRIGGER, topics.TRIGGER, payload)
    archive.seal([foreign], 1)
    parser = Parser(settings, dedupe := DedupeWindow(900_000))
    parser.seqs = seqs

    remember_triggers(dedupe, (), archive, parser, wall_clock_ms())

    assert parser.build(Message(topics.TRIGGER, payload)).duplicate_of == foreign.seq


def test_a_trigger_of_another_program_that_ingest_refuses_makes_no_duplicate(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    archive = RecordedSegments(Archive(f"file://{tmp_path}/archive", settings.s3))
    payload = json.dumps({"ids": ["V1"], "request_id": "r", "data_id": "d"}).encode()
    seqs = SeqSource(1)
    archive.seal([Envelope(seqs.next(), datetime.now(UTC), Stream.TRIGGER, "elsewhere", payload)], 1)
    parser = Parser(settings, dedupe := DedupeWindow(900_000))
    parser.seqs = seqs

    remember_triggers(dedupe, (), archive, parser, wall_clock_ms())

    assert parser.build(Message(topics.TRIGGER, payload)).duplicate_of is None
