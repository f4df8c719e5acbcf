"""Answers of vehicles to a campaign: JSON on `<topic_prefix>/<VIN>/proxy/response/<campaign>`.

Any bytes parse to an answer, or to a `Refused` with the reason.
"""

import json
from enum import StrEnum

from msgspec import Struct

from manifold.contracts.messages import NAME_RULE, Refused, shown
from manifold.contracts.names import MAX_ID, MAX_VIN, Owner, RequestId, is_id, is_vin
from manifold.contracts.seq import MAX_SEQ
from manifold.contracts.topics import response_of

MAX_ANSWER_BYTES = 4096
MAX_REASON = 200  # characters of a reason that are read; the archive has all of it


class Answer(StrEnum):
    """What a vehicle reports about an entry that it received, weakest first.

    Of two answers about an entry, the stronger counts.
    """

    BUSY = "busy"  # the vehicle cannot apply the entry now
    FAILED = "failed"
    REFUSED = "refused"  # the vehicle will never apply the entry
    DONE = "done"


class VehicleAnswer(Struct, frozen=True, gc=False):
    """An answer of the vehicle to the message that a campaign's release sent it."""

    vin: Owner
    campaign: RequestId
    release: int  # the seq of the message that it answers
    answer: Answer
    reason: str = ""


def is_answer(payload: bytes) -> bool:
    """Whether a response looks like an answer. Vehicles may publish other responses, too, which Manifold does not record."""
    return b'"seq"' in payload and b'"status"' in payload


def parse_answer(topic: str, payload: bytes) -> VehicleAnswer | Refused:
    """Parse the payload of a response topic. Unknown fields are ignored; a long reason is cut."""
    vin_and_campaign = response_of(topic)
    if vin_and_campaign is None:
        return Refused(f"topic {shown(topic)} names no campaign; answer on <topic_prefix>/<VIN>/proxy/response/<campaign>")
    vin, campaign = vin_and_campaign
    if not is_vin(vin):
        return Refused(f"VIN {shown(vin)} in the topic must be 1 to {MAX_VIN} {NAME_RULE}")
    if not is_id(campaign):
        return Refused(f"campaign {shown(campaign)} in the topic must be 1 to {MAX_ID} {NAME_RULE}")
    if len(payload) > MAX_ANSWER_BYTES:
        return Refused(f"an answer of {len(payload)} bytes is over {MAX_ANSWER_BYTES}; send a shorter reason")
    try:
        fields = json.loads(payload.decode("utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        return Refused(f"payload is not JSON ({exc}); send an object with seq and status")
    if not isinstance(fields, dict):
        return Refused("payload is not a JSON object; send one with seq and status")
    release_seq = _parse_seq(fields.get("seq"))
    if release_seq is None:
        value = shown(fields.get("seq"))
        return Refused(f"seq {value} must be a whole number from 1 to {MAX_SEQ}: the seq of the message that you answer")
    status, reason = fields.get("status"), fields.get("reason")
    if not isinstance(status, str) or status not in tuple(Answer):
        return Refused(f"status {shown(status)} must be one of {', '.join(Answer)}")
    if reason is not None and not isinstance(reason, str):
        return Refused(f"reason {shown(reason)} must be a string; leave it out if there is none")
    return VehicleAnswer(Owner(vin), RequestId(campaign), release_seq, Answer(status), _printable(reason or ""))


def _parse_seq(value: object) -> int | None:
    """Return a seq sent as a number or as text; None if the value is no seq.

    The vehicle received the seq as text, and returns it as text if it has no 64-bit integers.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(MAX_SEQ)):
        value = int(value)
    # `isinstance` would accept a bool.
    return value if type(value) is int and 1 <= value <= MAX_SEQ else None


def _printable(reason: str) -> str:
    """Truncate a reason and replace its control characters, which a terminal that shows the reason would execute."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in reason[:MAX_REASON])
