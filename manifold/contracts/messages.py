"""Parsers of the platform's triggers and data. Any bytes parse to a message, or to a `Refused` with its reason."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from manifold.contracts.names import MAX_ID, MAX_VIN, DataId, Owner, RequestId, are_vins, is_id, is_vin

NAME_RULE = "printable ASCII characters without space, + # /"
SHOWN = 60  # characters of a bad value quoted in a reason
# Lists and objects allowed in a trigger, which needs two. Without this limit, the maximum depth would depend on the parser's
# stack, so the recorder and the lake could disagree; and a hundred megabytes of brackets would take a minute and gigabytes of
# memory.
MAX_PARTS = 100
MAX_NUMBER = (1 << 53) - 1  # of campaigns' messages: the largest integer that every JSON parser represents exactly
LATEST_MS = 253_402_300_799_999  # the last millisecond that a timestamp's text form can show: year 9999

# The closing quote is optional: if a string without an end did not match, the search would start again at each of its characters.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Refused:
    """Input that Manifold rejects, and why: field, value and remedy in one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReleasedBy:
    """The position of a trigger in its campaign, whose id is the trigger's request_id."""

    wave: int
    step: int  # counts the campaign's releases, which distinguishes two triggers for the same vehicles
    until_ms: int | None = None  # end of the vehicles' time window, Unix milliseconds; None: no window


@dataclass(frozen=True, slots=True)
class Trigger:
    """A batch: send the data `data_id` to every VIN in `ids`."""

    ids: tuple[Owner, ...]  # unique, in the order of the message
    request_id: RequestId
    data_id: DataId
    data: bytes | None = None  # inline payload; `data_id` is its SHA-1
    campaign: ReleasedBy | None = None

    @property
    def digest(self) -> str:
        """The digest shared by all repetitions of this trigger."""
        return trigger_digest(self.ids, self.request_id, self.data_id, None if self.campaign is None else self.campaign.step)


@dataclass(frozen=True, slots=True)
class Data:
    """A payload that triggers refer to by `data_id`."""

    data_id: DataId
    payload: bytes


class ReceiptStatus(StrEnum):
    """The recorder's verdict for a publisher that asked for a receipt."""

    RECORDED = "recorded"  # durable
    DUPLICATE = "duplicate"  # durable, and a repetition of `duplicate_of`: not queued again
    REFUSED = "refused"  # in quarantine under its seq


@dataclass(frozen=True, slots=True)
class Receipt:
    """The recorder's reply to a publisher: the message is durable, or was refused, and why.

    A durable order that stops a campaign has a reason if it is not in force yet.
    """

    seq: int
    status: ReceiptStatus
    duplicate_of: int | None = None
    reason: str | None = None

    def to_wire(self) -> bytes:
        """Return the JSON for the publisher's response topic."""
        fields = {"seq": self.seq, "status": self.status.value, "duplicate_of": self.duplicate_of, "reason": self.reason}
        return json.dumps(fields).encode()


def sha1_hex(payload: bytes) -> str:
    """Return the SHA-1 in lower-case hex: the data_id of inline data, and the table's `sha1`."""
    return hashlib.sha1(payload, usedforsecurity=False).hexdigest()


def trigger_digest(ids: Iterable[str], request_id: str, data_id: str, step: int | None = None) -> str:
    """Return the identity of a trigger, in hex: a digest of its set of ids, request_id, data_id, and `step`.

    `step` is `ReleasedBy.step`, for a trigger that a campaign released: the campaign may name the same vehicles again.
    """
    digest = hashlib.sha256()
    for part in (request_id, data_id, *sorted(set(ids))):
        digest.update(part.encode())
        digest.update(b"\n")  # no name contains a newline
    if step is not None:
        digest.update(f" {step}\n".encode())  # no name contains a space
    return digest.hexdigest()


def parse_data(topic_data_id: str, payload: bytes, *, max_data_bytes: int) -> Data | Refused:
    """Parse a data message on `$SDV-FANOUT/data/<topic_data_id>`."""
    if not is_id(topic_data_id):
        return Refused(f"data_id {shown(topic_data_id)} in the topic must be 1 to {MAX_ID} {NAME_RULE}")
    if len(payload) > max_data_bytes:
        return Refused(f"payload of {len(payload)} bytes is over max_data_bytes={max_data_bytes}; send less or raise the setting")
    return Data(DataId(topic_data_id), payload)


def parse_trigger(
    payload: bytes, *, max_ids: int, max_data_bytes: int, inline_encoding: str = "base64", is_release: bool = False
) -> Trigger | Refused:
    """Parse a trigger, all or nothing: one bad VIN refuses it. A VIN listed twice counts once.

    `inline_encoding` is the encoding of the field `data`: base64, or text for literal content. `is_release`: the message arrived
    on the topic of campaigns' releases. On any other topic, a field `campaign` has nothing to do with Manifold and is ignored.
    """
    try:
        text = payload.decode("utf-8-sig")
        if _has_too_many_parts(text):
            return Refused(f"payload holds over {MAX_PARTS} lists and objects; send an object with ids, request_id and data_id")
        fields = json.loads(text)
    except (ValueError, RecursionError) as exc:
        return Refused(f"payload is not JSON ({exc}); send an object with ids, request_id and data_id")
    if not isinstance(fields, dict):
        return Refused(f"payload is a JSON {_json_type(fields)}; send an object with ids, request_id and data_id")
    ids = _parse_ids(fields, max_ids)
    if isinstance(ids, Refused):
        return ids
    request_id = _parse_id(fields, "request_id")
    if isinstance(request_id, Refused):
        return request_id
    campaign = _parse_campaign(fields) if is_release else None
    if isinstance(campaign, Refused):
        return campaign
    if "data" in fields:
        if campaign is not None:
            return Refused("data is inline in a campaign's trigger; publish it once, and name it by data_id")
        return _parse_inline(fields, ids, RequestId(request_id), max_data_bytes, inline_encoding)
    data_id = _parse_id(fields, "data_id")
    if isinstance(data_id, Refused):
        return data_id
    return Trigger(ids, RequestId(request_id), DataId(data_id), campaign=campaign)


def _parse_ids(fields: dict[str, Any], max_ids: int) -> tuple[Owner, ...] | Refused:
    ids = fields.get("ids")
    if ids is None:
        return Refused("ids is missing; send a list of VINs")
    if not isinstance(ids, list):
        return Refused(f"ids is a {_json_type(ids)}; send a list of VINs")
    if not ids:
        return Refused("ids is empty; name at least one VIN")
    if not are_vins(ids):
        return _refusal_of_first_bad_vin(ids)
    distinct = dict.fromkeys(ids)
    if len(distinct) > max_ids:
        return Refused(f"ids has {len(distinct)} VINs, over max_ids={max_ids}; send several triggers or raise the setting")
    return tuple(distinct)


def _refusal_of_first_bad_vin(ids: list[Any]) -> Refused:
    """Return the refusal of a list of which not all elements are VINs; it names the first element that is not a VIN."""
    for index, vin in enumerate(ids):
        if not isinstance(vin, str):
            return Refused(f"ids[{index}] is a {_json_type(vin)} ({shown(vin)}); each VIN is a string")
        if not is_vin(vin):
            return Refused(f"ids[{index}] {shown(vin)} must be 1 to {MAX_VIN} {NAME_RULE}")
    raise AssertionError("all elements are VINs")


def _parse_id(fields: dict[str, Any], name: str) -> str | Refused:
    value = fields.get(name)
    if value is None:
        remedy = "; name the data, or send it inline as data" if name == "data_id" else ""
        return Refused(f"{name} is missing{remedy}")
    if not isinstance(value, str):
        return Refused(f"{name} is a {_json_type(value)} ({shown(value)}); it must be a string")
    if not is_id(value):
        return Refused(f"{name} {shown(value)} must be 1 to {MAX_ID} {NAME_RULE}")
    return value


def _parse_campaign(fields: dict[str, Any]) -> ReleasedBy | Refused:
    campaign = fields.get("campaign")
    if not isinstance(campaign, dict):
        return Refused(f"campaign is a {_json_type(campaign)}; a release has an object with wave, step and until")
    wave = _parse_number(campaign, "wave", 0, MAX_NUMBER)
    if isinstance(wave, Refused):
        return wave
    step = _parse_number(campaign, "step", 1, MAX_NUMBER)
    if isinstance(step, Refused):
        return step
    if campaign.get("until") is None:
        return ReleasedBy(wave, step)
    until_ms = _parse_number(campaign, "until", 0, LATEST_MS)
    if isinstance(until_ms, Refused):
        return until_ms
    return ReleasedBy(wave, step, until_ms)


def _parse_number(campaign: dict[str, Any], name: str, minimum: int, maximum: int) -> int | Refused:
    value = campaign.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
        return value
    return Refused(f"campaign.{name} {shown(value)} must be a whole number from {minimum} to {maximum}")


def _parse_inline(
    fields: dict[str, Any], ids: tuple[Owner, ...], request_id: RequestId, max_data_bytes: int, encoding: str
) -> Trigger | Refused:
    """Parse a trigger that has its data inside; the data_id is the SHA-1 of the data."""
    encoded = fields["data"]
    if not isinstance(encoded, str):
        return Refused(f"data is a {_json_type(encoded)}; send the payload as a string ({encoding})")
    try:
        data = encoded.encode() if encoding == "text" else base64.b64decode(encoded, validate=True)
    except UnicodeEncodeError:
        return Refused("data holds half of a surrogate pair, which no bytes stand for; send whole characters")
    except (binascii.Error, ValueError) as exc:
        return Refused(f"data is not base64 ({exc}); encode the payload with the standard alphabet and padding")
    if len(data) > max_data_bytes:
        return Refused(f"data of {len(data)} bytes is over max_data_bytes={max_data_bytes}; send less or raise the setting")
    data_id = sha1_hex(data)
    stated_id = fields.get("data_id")
    if stated_id is not None and not isinstance(stated_id, str):
        return Refused(f"data_id is a {_json_type(stated_id)} ({shown(stated_id)}); leave it out of the inline form")
    if stated_id is not None and stated_id != data_id:
        return Refused(f"data_id {shown(stated_id)} is not the SHA-1 of data ({data_id}); leave it out of the inline form")
    return Trigger(ids, request_id, DataId(data_id), data)


def _json_type(value: object) -> str:
    names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    return names.get(type(value), type(value).__name__)


def shown(value: object) -> str:
    """Format a value for a reason: the size of a list or object, the beginning of a long text."""
    if isinstance(value, list | dict):
        return f"{len(value)} item{'' if len(value) == 1 else 's'}"
    if isinstance(value, str):
        return json.dumps(value[:SHOWN]) + ("…" if len(value) > SHOWN else "")
    return json.dumps(value)[:SHOWN]


def _has_too_many_parts(text: str) -> bool:
    """Whether the text has more than `MAX_PARTS` opening brackets and braces outside of strings."""
    if text.count("[") + text.count("{") <= MAX_PARTS:
        return False  # even all brackets together, inside and outside of strings, are not too many
    brackets = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        is_string = text[match.start()] == '"'
        if not is_string:
            brackets += 1
            if brackets > MAX_PARTS:
                return True
    return False
