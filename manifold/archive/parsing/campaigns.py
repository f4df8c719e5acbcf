"""Orders of people and of the campaigner: messages of the stream `campaign`."""

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common, refused, rows_of_messages, validated
from manifold.contracts.campaigns import AddTargets, Amend, Command, Propose, Target, decode
from manifold.contracts.messages import Refused, shown
from manifold.contracts.names import is_vin
from manifold.contracts.topics import CAMPAIGN
from manifold.contracts.vins import are_iso_3779

TARGET = pa.struct([("vin", pa.string()), ("zone", pa.string()), ("wave", pa.string()), ("vin_is_iso_3779", pa.bool_())])
CAMPAIGNS = pa.schema(
    [
        *COMMON,
        ("campaign", pa.string()),
        ("do", pa.string()),
        ("by", pa.string()),
        ("why", pa.string()),
        ("wave", pa.int64()),
        ("rule", pa.string()),
        ("counts", pa.string()),  # JSON
        ("if_version", pa.int64()),
        ("epoch", pa.int64()),
        ("seen", pa.int64()),
        ("record", pa.binary()),
        ("data_id", pa.string()),  # of an order with a plan, as the next three
        ("plan", pa.string()),
        ("plan_sha256", pa.string()),
        ("tzdata", pa.string()),
        ("targets", pa.list_(TARGET)),  # each vehicle that the order lists, once
    ]
)
_canonical = msgspec.json.Encoder(order="sorted").encode


def campaigns(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """One row for each order, accepted or refused."""
    return rows_of_messages(messages, CAMPAIGNS, lambda row: [_row(row, validated(_content, row, limits))])


def _content(row: Row, _limits: Limits) -> Command | Refused:
    if row["topic"] != CAMPAIGN:
        return Refused(f"unknown topic {shown(row['topic'])}; orders to campaigns come on {CAMPAIGN}")
    return decode(row["payload"])


def _row(row: Row, said: Command | Refused) -> Row:
    if isinstance(said, Refused):
        return refused(row, said.reason)
    columns = {name: getattr(said, name) for name in ("campaign", "by", "if_version", "epoch", "seen")}
    columns |= {name: getattr(said, name, None) for name in ("wave", "rule")}
    columns |= {"do": str(said.__struct_config__.tag), "why": said.why or None, "record": row["payload"]}
    counts = getattr(said, "counts", {})
    columns["counts"] = _canonical(counts).decode() if counts else None
    listed = _listed(said)
    flags = are_iso_3779(pa.array([target.vin for target in listed], pa.string())).tolist()
    columns["targets"] = [
        msgspec.structs.asdict(target) | {"vin_is_iso_3779": flag} for target, flag in zip(listed, flags, strict=True)
    ]
    return common(row) | columns | (_plan(said) if isinstance(said, Propose | Amend) else {})


def _plan(order: Propose | Amend) -> Row:
    plan, data_id = _canonical(order.plan), order.plan.get("data_id")
    return {
        "plan": plan.decode(),
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
        "data_id": data_id if isinstance(data_id, str) else None,
        "tzdata": order.tzdata,
    }


def _listed(order: Command) -> list[Target]:
    """The vehicles that an order lists, each once; those that a plan names for a wave first. The plan may be invalid."""
    listed = list(order.targets) if isinstance(order, AddTargets) else []
    if isinstance(order, Propose | Amend):
        waves = order.plan.get("waves")
        for wave in waves if isinstance(waves, list) else ():
            listed += (Target(vin, wave=_text(wave.get("name"))) for vin in _vins(wave)) if isinstance(wave, dict) else ()
        listed += (Target(vin) for vin in _vins(order.plan.get("targets")))
    once: dict[str, Target] = {}
    for target in listed:
        once.setdefault(target.vin, target)
    return list(once.values())


def _vins(part: Any) -> list[str]:
    vins = part.get("vins") if isinstance(part, dict) else None
    return [vin for vin in vins if isinstance(vin, str) and is_vin(vin)] if isinstance(vins, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
