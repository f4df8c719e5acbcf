"""Converts releases to the platform's ordinary triggers, and recorded triggers, outcomes and answers to facts of a campaign."""

import msgspec

from manifold.campaigns.facts import Answered, Ended, Ending, Released
from manifold.campaigns.plan import Plan
from manifold.campaigns.step import Release
from manifold.contracts.answers import VehicleAnswer
from manifold.contracts.messages import Trigger, parse_trigger
from manifold.contracts.outcomes import OutcomeRecord

NO_LIMIT = 1 << 62


class _OutcomeSeq(msgspec.Struct):
    """The field that shows whether an outcome concerns a campaign. Most outcomes do not, so no other field is decoded."""

    seq: int


_decode_outcome = msgspec.json.Decoder(_OutcomeSeq).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def trigger_payload(plan: Plan, release: Release) -> bytes:
    """Encode the trigger of a release. Its request_id is the campaign's id, so all messages of a campaign have the same topic."""
    campaign = {"wave": release.wave, "step": release.step, "until": release.until_ms}
    return _encode({"ids": release.vins, "request_id": plan.campaign, "data_id": plan.data_id, "campaign": campaign})


def trigger(payload: bytes) -> Trigger | None:
    """Parse a recorded trigger without limits, because limits may have been lowered since it was accepted. None if invalid."""
    parsed = parse_trigger(payload, max_ids=NO_LIMIT, max_data_bytes=NO_LIMIT, is_release=True)
    return parsed if isinstance(parsed, Trigger) else None


def release_of(payload: bytes) -> int:
    """Return the seq of the trigger to which an outcome belongs.

    Raises:
        ValueError: `payload` is not an outcome.
    """
    return _decode_outcome(payload).seq


def released(seq: int, release: Trigger) -> Released | None:
    """Return the fact of a trigger that is recorded as `seq`, or None if the trigger is not a release of a campaign."""
    details = release.campaign
    return None if details is None else Released(seq, details.wave, details.step, release.ids, details.until_ms)


def ended(seq: int, record: OutcomeRecord) -> Ended:
    """Return the fact of an outcome that is recorded as `seq`."""
    return Ended(seq, record.vin, record.seq, Ending(record.outcome.value))


def answered(seq: int, answer: VehicleAnswer) -> Answered:
    """Return the fact of an answer that is recorded as `seq`."""
    return Answered(seq, answer.vin, answer.release, answer.answer)
