"""Removes a vehicle from orders to campaigns: from the recorded messages, and from rows of the lake. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from manifold.archive import parsing
from manifold.contracts.campaigns import AddTargets, Amend, Command, Propose, decode, encode
from manifold.contracts.envelope import Envelope, Stream, to_arrow
from manifold.contracts.messages import Refused
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import CAMPAIGN_EVENTS, CAMPAIGN_TARGETS, CAMPAIGNS, Table
from manifold.contracts.topics import CAMPAIGN


def without_vehicle(payload: bytes, vin: str, names_it: Callable[[bytes], bool]) -> bytes | None:
    """The same order without the vehicle; None if nothing is left of it, or if the payload cannot be decoded.

    The vehicle is removed from a list of targets and from the VINs of a plan. A reason that names it becomes empty. An order
    that names the vehicle anywhere else is removed as a whole, and so is a plan that would be invalid without the vehicle.
    """
    order = decode(payload)
    if isinstance(order, Refused):
        return None
    rest = _order_without(order, vin)
    if rest is not None and names_it(rest.why.encode()):
        rest = replace(rest, why="")
    if rest is None or names_it(encoded := encode(rest)):
        return None
    return encoded


def _order_without(order: Command, vin: str) -> Command | None:
    """The order without `vin` in its targets or its plan; None if nothing is left."""
    if isinstance(order, AddTargets):
        others = tuple(target for target in order.targets if target.vin != vin)
        return replace(order, targets=others) if others else None
    if isinstance(order, Propose | Amend):
        plan = _plan_without(order.plan, vin)
        return None if plan is None else replace(order, plan=plan)
    return order


def _plan_without(plan: dict[str, Any], vin: str) -> dict[str, Any] | None:
    """The plan without `vin` in its lists of VINs; None if one of them would be empty, which no plan may have."""
    rest: dict[str, Any] = {}
    for name, value in plan.items():
        parts = value if name == "waves" and isinstance(value, list) else [value]
        kept = [_without_vin(part, vin) for part in parts]
        if any(isinstance(part, dict) and part.get("vins") == [] for part in kept):
            return None
        rest[name] = kept if parts is value else kept[0]
    return rest


def _without_vin(part: Any, vin: str) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("vins"), list):
        return part
    return part | {"vins": [each for each in part["vins"] if each != vin]}


def rows_of(orders: Mapping[int, bytes]) -> dict[str, pa.Table]:
    """The rows that ingest makes of these recorded orders (by seq), by table."""
    envelopes = [Envelope(seq, datetime_of(seq), Stream.CAMPAIGN, CAMPAIGN, payload) for seq, payload in orders.items()]
    limits = parsing.Limits(max_ids=0, max_data_bytes=0)  # of triggers and data
    found = [row for batch in parsing.campaigns(to_arrow(envelopes), limits) for row in batch.to_pylist()]
    accepted = [row for row in found if row["reason"] is None]
    listed = [row | target for row in accepted for target in row["targets"]]
    plans = [row for row in accepted if row["plan"] is not None]
    rows = ((CAMPAIGNS, plans), (CAMPAIGN_EVENTS, accepted), (CAMPAIGN_TARGETS, listed))
    return {table.name: _table(table, each) for table, each in rows}


def _table(table: Table, rows: list[dict[str, Any]]) -> pa.Table:
    complete = [
        {c.name: datetime_of(row["seq"]) if c.name == table.day_of else row[c.name] for c in table.columns} for row in rows
    ]
    return pa.Table.from_pylist(complete, schema=table.arrow_schema)
