"""Removes a vehicle from orders to campaigns, which are in recorded messages and in rows of the lake. Pure."""

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


def order_without_vehicle(payload: bytes, vin: str, names_vehicle: Callable[[bytes], bool]) -> bytes | None:
    """Return the encoded order without the vehicle; None if nothing is left of it, or if the payload cannot be decoded.

    The vehicle is removed from a list of targets and from the VINs of a plan. A reason that names the vehicle becomes empty. An
    order that names the vehicle anywhere else is removed as a whole, and so is an order whose plan would be invalid without the
    vehicle. `names_vehicle` tells whether bytes name the vehicle.
    """
    order = decode(payload)
    if isinstance(order, Refused):
        return None
    reduced = _order_without(order, vin)
    if reduced is None:
        return None
    if names_vehicle(reduced.why.encode()):
        reduced = replace(reduced, why="")
    encoded = encode(reduced)
    return None if names_vehicle(encoded) else encoded


def _order_without(order: Command, vin: str) -> Command | None:
    """Return the order without `vin` in its targets or its plan; None if no target or no valid plan is left."""
    if isinstance(order, AddTargets):
        others = tuple(target for target in order.targets if target.vin != vin)
        return replace(order, targets=others) if others else None
    if isinstance(order, Propose | Amend):
        plan = _plan_without(order.plan, vin)
        return None if plan is None else replace(order, plan=plan)
    return order  # no other order lists vehicles


def _plan_without(plan: dict[str, Any], vin: str) -> dict[str, Any] | None:
    """Return the plan without `vin`; None if a list of VINs would be empty, which makes a plan invalid.

    Each wave, and any other part of a plan, may have a list `vins`.
    """
    reduced: dict[str, Any] = {}
    for name, value in plan.items():
        if name == "waves" and isinstance(value, list):
            waves = [_without_vin(wave, vin) for wave in value]
            if any(_has_empty_list(wave) for wave in waves):
                return None
            reduced[name] = waves
        else:
            part = _without_vin(value, vin)
            if _has_empty_list(part):
                return None
            reduced[name] = part
    return reduced


def _without_vin(part: Any, vin: str) -> Any:
    """Return a part of a plan without `vin` in its list `vins`, if it has one."""
    if not isinstance(part, dict) or not isinstance(part.get("vins"), list):
        return part
    return part | {"vins": [other for other in part["vins"] if other != vin]}


def _has_empty_list(part: Any) -> bool:
    """Whether a part of a plan has an empty list `vins`."""
    return isinstance(part, dict) and part.get("vins") == []


def rows_of(orders: Mapping[int, bytes]) -> dict[str, pa.Table]:
    """Make the rows that ingest makes of these recorded orders (seq → payload). Return them by table."""
    envelopes = [Envelope(seq, datetime_of(seq), Stream.CAMPAIGN, CAMPAIGN, payload) for seq, payload in orders.items()]
    limits = parsing.Limits(max_ids=0, max_data_bytes=0)  # not used, because these limits concern triggers and data
    parsed = [row for batch in parsing.campaigns(to_arrow(envelopes), limits) for row in batch.to_pylist()]
    events = [row for row in parsed if row["reason"] is None]
    plans = [row for row in events if row["plan"] is not None]
    targets = [row | target for row in events for target in row["targets"]]
    return {
        CAMPAIGNS.name: _arrow_rows(CAMPAIGNS, plans),
        CAMPAIGN_EVENTS.name: _arrow_rows(CAMPAIGN_EVENTS, events),
        CAMPAIGN_TARGETS.name: _arrow_rows(CAMPAIGN_TARGETS, targets),
    }


def _arrow_rows(table: Table, rows: list[dict[str, Any]]) -> pa.Table:
    """Convert the rows into the table's schema. The column `table.day_of`, if there is one, gets the instant of the row's seq."""
    complete_rows = []
    for row in rows:
        complete = {column.name: row[column.name] for column in table.columns if column.name != table.day_of}
        if table.day_of is not None:
            complete[table.day_of] = datetime_of(row["seq"])
        complete_rows.append(complete)
    return pa.Table.from_pylist(complete_rows, schema=table.arrow_schema)
