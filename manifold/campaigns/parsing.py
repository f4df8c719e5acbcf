"""Parses plans: turns a JSON document into a `Plan`, or into the first broken rule with field, value and remedy."""

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
_PROBLEM_AND_PATH = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)  # the form of an error message of msgspec
_FIELD_PROBLEM = re.compile(r"Object (missing required|contains unknown) field `([^`]+)`")
_ALLOWED_WORDS = {  # by field name
    "away": Away,
    "stay": Stay,
    "count": Counted,
    "of": CountedOf,
    "then": Reaction,
    "on": Retried,
    "days": Day,
    "by": Proof,
}
_PATH_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")  # a field name, or an index in brackets


def parse_plan(payload: bytes) -> Plan | Refused:
    """Return the plan in `payload`, or the first broken rule with field, value and remedy."""
    if len(payload) > MAX_PLAN_BYTES:
        return Refused(f"plan of {len(payload)} bytes is over {MAX_PLAN_BYTES}; name a file of vehicles instead of listing them")
    try:
        return plan_of(_decode(payload.removeprefix(BOM_UTF8)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return Refused(f"plan is not JSON ({exc}); send an object with campaign, data_id, targets and ends")


def plan_of(document: Any) -> Plan | Refused:
    """Return the plan in a decoded document, or the first broken rule with field, value and remedy."""
    try:
        return msgspec.convert(document, Plan)
    except msgspec.ValidationError as exc:
        return Refused(_reason(str(exc), document))


def plan_sha256(document: Any) -> str:
    """The identity of a plan: SHA-256 of its canonical JSON, lower-case hex."""
    return hashlib.sha256(_encode(document)).hexdigest()


def _reason(error: str, document: Any) -> str:
    """Rewrite an error message of `msgspec` about `document` as field, value and remedy."""
    problem, path = _PROBLEM_AND_PATH.fullmatch(error).groups(default="")  # type: ignore[union-attr]  # it matches any text
    field_problem = _FIELD_PROBLEM.fullmatch(problem)
    if field_problem is not None:
        kind, field = field_problem.groups()
        field_path = f"{path}.{field}".lstrip(".")
        if kind == "missing required":
            return f"{field_path} is missing; every {path or 'plan'} needs it"
        return f"{field_path} {shown(_value(document, field_path))} is not a field of a plan; remove it or correct its name"
    # The classes of a plan raise ValueError("<field>: <remedy>"). The path in such an error is that of the object with the field.
    field, colon, remedy = problem.partition(": ")
    if colon and " " not in field:
        path, problem = f"{path}.{field}".strip("."), remedy
    elif problem.startswith("Invalid enum value"):
        field_names = [name for name, _ in _PATH_STEP.findall(path) if name]
        problem = f"must be one of {', '.join(get_args(_ALLOWED_WORDS[field_names[-1]]))}"
    lower_case_problem = problem[:1].lower() + problem[1:]
    return f"{path or 'plan'} {shown(_value(document, path))}: {lower_case_problem}"


def _value(document: Any, path: str) -> Any:
    """Return the value at a path such as `waves[0].size`, or None if the document has no such path."""
    value = document
    for name, index in _PATH_STEP.findall(path):  # one of the two is empty
        try:
            value = value[name or int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return value
