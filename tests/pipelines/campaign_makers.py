"""Facts of a campaign as the messages that an archive has of them."""

import json
from collections.abc import Iterable
from typing import Any

from manifold.campaigns.facts import Answered, Ended, Fact, Recorded, Released
from manifold.contracts.campaigns import encode
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import datetime_of, unix_ms_of
from manifold.contracts.topics import CAMPAIGN, RELEASE, response_topic
from tests.pipelines.conftest import SparkLake

DISPATCH_MS = 500  # from the last publish to its acknowledgement


def messages(facts: Iterable[Fact], plan: dict[str, Any]) -> dict[Stream, list[Envelope]]:
    """The messages behind these facts, by stream and in the order of their seqs."""
    found: dict[Stream, list[Envelope]] = {}
    for fact in sorted(facts, key=lambda fact: fact.seq):
        stream, topic, payload = _message(fact, plan)
        found.setdefault(stream, []).append(Envelope(fact.seq, datetime_of(fact.seq), stream, topic, payload))
    return found


def archive(lake: SparkLake, facts: Iterable[Fact], plan: dict[str, Any]) -> None:
    """Write them, a segment a stream."""
    for stream, envelopes in messages(facts, plan).items():
        lake.write(stream, envelopes)


def _message(fact: Fact, plan: dict[str, Any]) -> tuple[Stream, str, bytes]:
    match fact:
        case Recorded(_, command):
            return Stream.CAMPAIGN, CAMPAIGN, encode(command)
        case Released():
            place = {"wave": fact.wave, "step": fact.step, "until": fact.until_ms}
            fields = {"ids": fact.vins, "request_id": plan["campaign"], "data_id": plan["data_id"], "campaign": place}
            return Stream.TRIGGER, RELEASE, json.dumps(fields).encode()
        case Ended():
            ended_ms = unix_ms_of(fact.seq)
            record = OutcomeRecord(fact.vin, fact.release, Outcome(str(fact.ending)), ended_ms, ended_ms - DISPATCH_MS, 1)
            return Stream.OUTCOME, f"outcomes/{fact.vin}", record.to_wire()
        case Answered():
            payload = json.dumps({"seq": fact.release, "status": fact.answer, "reason": "so it is"}).encode()
            return Stream.ANSWER, response_topic("agent", fact.vin, plan["campaign"]), payload
    raise AssertionError(fact)
