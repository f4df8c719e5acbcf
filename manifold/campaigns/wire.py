"""Releases as the platform's ordinary triggers; and triggers, outcomes and answers as facts of a campaign."""

import msgspec

from manifold.campaigns.facts import Answered, Ended, Ending, Released
from manifold.campaigns.plan import Plan
from manifold.campaigns.step import Release
from manifold.contracts.answers import VehicleAnswer
from manifold.contracts.messages import Trigger, parse_trigger
from manifold.contracts.outcomes import OutcomeRecord

NO_LIMIT = 1 << 62


class _Outcome(msgspec.Struct):
    """Most outcomes concern no campaign, so no more is decoded."""

    seq: int


_decode_outcome = msgspec.json.Decoder(_Outcome).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def trigger_payload(plan: Plan, release: Release) -> bytes:
    """The trigger that carries out a release: its request_id is the campaign, so the vehicle sees one topic."""
    campaign = {"wave": release.wave, "step": release.step, "until": release.until_ms}
    return _encode({"ids": release.vins, "request_id": plan.campaign, "data_id": plan.data_id, "campaign": campaign})


def trigger(payload: bytes) -> Trigger | None:
    """A trigger that was accepted when it was recorded: limits that were lowered since do not undo it."""
    parsed = parse_trigger(payload, max_ids=NO_LIMIT, max_data_bytes=NO_LIMIT, is_release=True)
    return parsed if isinstance(parsed, Trigger) else None


def release_of(payload: bytes) -> int:
    """The seq of the trigger that an outcome belongs to.

    Raises:
        ValueError: it is not an outcome.
    """
    return _decode_outcome(payload).seq


def released(seq: int, release: Trigger) -> Released | None:
    """The fact of a trigger that is recorded as `seq`; None for one that is not of a campaign."""
    place = release.campaign
    return None if place is None else Released(seq, place.wave, place.step, release.ids, place.until_ms)


def ended(seq: int, record: OutcomeRecord) -> Ended:
    """The fact of an outcome that is recorded as `seq`."""
    return Ended(seq, record.vin, record.seq, Ending(record.outcome.value))


def answered(seq: int, answer: VehicleAnswer) -> Answered:
    """The fact of an answer that is recorded as `seq`."""
    return Answered(seq, answer.vin, answer.release, answer.answer)
