"""Determines which recorded campaigns are over, and where each one begins, without keeping long lists of targets in memory."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from manifold.campaigns.decided import OVER
from manifold.campaigns.decisions import decide
from manifold.contracts.campaigns import AddTargets, Amend, Command


class Beginning(NamedTuple):
    """The seqs of a campaign's first and newest orders, and whether the campaign is over."""

    first_seq: int
    newest_seq: int
    is_over: bool


def beginnings(read_orders: Callable[[], Iterable[tuple[int, Command]]]) -> dict[str, Beginning]:
    """Return the `Beginning` of each campaign, by the campaign's id.

    `read_orders` yields all orders with their seqs. It is called a second time if any campaign has an amendment.
    """
    orders_by_name: dict[str, dict[int, Command]] = {}
    for seq, order in read_orders():
        orders_by_name.setdefault(order.campaign, {})[seq] = _shortened(order)
    # Whether an amendment is accepted depends on the whole list of targets, and whether it is accepted changes the campaign's
    # version, on which later orders depend. So campaigns with an amendment are read again with their whole lists.
    amended_names = [name for name, orders in orders_by_name.items() if _has_amendment(orders.values())]
    whole_orders: dict[str, dict[int, Command]] = {name: {} for name in amended_names}
    if whole_orders:
        for seq, order in read_orders():
            if order.campaign in whole_orders:
                whole_orders[order.campaign][seq] = order
    orders_by_name |= whole_orders  # in place of the shortened ones
    return {
        name: Beginning(first_seq=min(orders), newest_seq=max(orders), is_over=decide(orders).stage in OVER)
        for name, orders in orders_by_name.items()
    }


def _has_amendment(orders: Iterable[Command]) -> bool:
    return any(isinstance(order, Amend) for order in orders)


def _shortened(order: Command) -> Command:
    """Return the order; of a list of targets, only its first target is kept, because an order must list at least one."""
    return replace(order, targets=order.targets[:1]) if isinstance(order, AddTargets) else order
