"""Orders to campaigns, from people and from the campaigner: messages of the stream `campaign`."""

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common_columns, refused_row, rows_of_messages, validated
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
        ("data_id", pa.string()),  # this column and the next three are null unless the order has a plan
        ("plan", pa.string()),
        ("plan_sha256", pa.string()),
        ("tzdata", pa.string()),
        ("targets", pa.list_(TARGET)),  # the vehicles that the order lists, without duplicates
    ]
)
_canonical = msgspec.json.Encoder(order="sorted").encode


def campaigns(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse the stream into one row per message, accepted or refused."""
    return rows_of_messages(messages, CAMPAIGNS, lambda message: [_row(message, validated(_parse, message, limits))])


def _parse(message: Row, _limits: Limits) -> Command | Refused:
    if message["topic"] != CAMPAIGN:
        return Refused(f"unknown topic {shown(message['topic'])}; orders to campaigns come on {CAMPAIGN}")
    return decode(message["payload"])


def _row(message: Row, order: Command | Refused) -> Row:
    if isinstance(order, Refused):
        return refused_row(message, order.reason)
    columns = {name: getattr(order, name) for name in ("campaign", "by", "if_version", "epoch", "seen")}
    columns |= {name: getattr(order, name, None) for name in ("wave", "rule")}  # only some kinds of orders have these
    columns |= {"do": str(order.__struct_config__.tag), "why": order.why or None, "record": message["payload"]}
    counts = getattr(order, "counts", {})
    columns["counts"] = _canonical(counts).decode() if counts else None
    columns["targets"] = _target_rows(_targets_of(order))
    if isinstance(order, Propose | Amend):
        columns |= _plan_columns(order)
    return common_columns(message) | columns


def _target_rows(targets: list[Target]) -> list[Row]:
    """The values of the column `targets`: the fields of each target, and whether its VIN is valid by ISO 3779."""
    vins = pa.array([target.vin for target in targets], pa.string())
    rows = []
    for target, is_valid in zip(targets, are_iso_3779(vins).tolist(), strict=True):
        rows.append(msgspec.structs.asdict(target) | {"vin_is_iso_3779": is_valid})
    return rows


def _plan_columns(order: Propose | Amend) -> Row:
    plan = _canonical(order.plan)
    data_id = order.plan.get("data_id")
    return {
        "plan": plan.decode(),
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
        "data_id": data_id if isinstance(data_id, str) else None,
        "tzdata": order.tzdata,
    }


def _targets_of(order: Command) -> list[Target]:
    """The targets that an order lists, one per vehicle; empty if orders of this kind list none.

    If an order lists a vehicle several times, the first target counts. Of a plan, the targets in its waves come first, so that a
    vehicle listed in a wave and outside of waves keeps the wave.
    """
    targets: list[Target] = []
    if isinstance(order, AddTargets):
        targets += order.targets
    elif isinstance(order, Propose | Amend):
        targets += _wave_targets(order.plan.get("waves"))
        targets += [Target(vin) for vin in _vins_in(order.plan.get("targets"))]
    first_by_vin: dict[str, Target] = {}
    for target in targets:
        first_by_vin.setdefault(target.vin, target)
    return list(first_by_vin.values())


def _wave_targets(waves: Any) -> list[Target]:
    """The targets that the waves of a plan list. The plan may be invalid, so every type is checked."""
    if not isinstance(waves, list):
        return []
    targets: list[Target] = []
    for wave in waves:
        if isinstance(wave, dict):
            name = wave.get("name")
            wave_name = name if isinstance(name, str) else None
            targets += [Target(vin, wave=wave_name) for vin in _vins_in(wave)]
    return targets


def _vins_in(part: Any) -> list[str]:
    """The valid VINs in the field `vins` of this part of a plan, which may be invalid."""
    vins = part.get("vins") if isinstance(part, dict) else None
    if not isinstance(vins, list):
        return []
    return [vin for vin in vins if isinstance(vin, str) and is_vin(vin)]
