"""Reads plans: a document in; a `Plan`, or the first broken rule with field, value and remedy, out."""

import hashlib
import re
from codecs import BOM_UTF8
from typing import Any, get_args

import msgspec

from manifold.campaigns.plan import Away, Counted, CountedOf, Plan, Reaction, Stay
from manifold.campaigns.success import Proof, Retried
from manifold.campaigns.windows import Day
from manifold.contracts.messages import Refused, shown

MAX_PLAN_BYTES = 1 << 20
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode
_PLACE = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (missing required|contains unknown) field `([^`]+)`")
_WORDS = {
    "away": Away,
    "stay": Stay,
    "count": Counted,
    "of": CountedOf,
    "then": Reaction,
    "on": Retried,
    "days": Day,
    "by": Proof,
}
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def parse_plan(payload: bytes) -> Plan | Refused:
    """The plan in `payload`; otherwise the first broken rule, with field, value and remedy."""
    if len(payload) > MAX_PLAN_BYTES:
        return Refused(f"plan of {len(payload)} bytes is over {MAX_PLAN_BYTES}; name a file of vehicles instead of listing them")
    try:
        return plan_of(_decode(payload.removeprefix(BOM_UTF8)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return Refused(f"plan is not JSON ({exc}); send an object with campaign, data_id, targets and ends")


def plan_of(document: Any) -> Plan | Refused:
    """The plan in a decoded document."""
    try:
        return msgspec.convert(document, Plan)
    except msgspec.ValidationError as exc:
        return Refused(_reason(str(exc), document))


def plan_sha256(document: Any) -> str:
    """The identity of a plan: SHA-256 of its canonical JSON, lower-case hex."""
    return hashlib.sha256(_encode(document)).hexdigest()


def _reason(error: str, document: Any) -> str:
    """Rewrite an error of `msgspec` as field, value and remedy."""
    problem, path = _PLACE.fullmatch(error).groups(default="")  # type: ignore[union-attr]  # it matches any text
    named = _NAMED.fullmatch(problem)
    if named is not None:
        name = f"{path}.{named[2]}".lstrip(".")
        if named[1] == "missing required":
            return f"{name} is missing; every {path or 'plan'} needs it"
        return f"{name} {shown(_value(document, name))} is not a field of a plan; remove it or correct its name"
    own, colon, remedy = problem.partition(": ")
    if colon and " " not in own:
        path, problem = f"{path}.{own}".strip("."), remedy
    elif problem.startswith("Invalid enum value"):
        last_name = [name for name, _ in _STEP.findall(path) if name][-1]
        problem = f"must be one of {', '.join(get_args(_WORDS[last_name]))}"
    return f"{path or 'plan'} {shown(_value(document, path))}: {problem[:1].lower()}{problem[1:]}"


def _value(document: Any, path: str) -> Any:
    for name, place in _STEP.findall(path):
        try:
            document = document[name or int(place)]
        except (KeyError, IndexError, TypeError):
            return None
    return document
