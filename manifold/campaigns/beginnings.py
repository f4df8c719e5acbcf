"""Finds out which campaigns on record are over, and where each begins, without keeping long lists of targets in memory."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from manifold.campaigns.decided import OVER
from manifold.campaigns.decisions import decide
from manifold.contracts.campaigns import AddTargets, Amend, Command


class Beginning(NamedTuple):
    """The seqs of a campaign's first and newest orders, and whether the campaign is over."""

    seq: int
    newest: int
    is_over: bool


def beginnings(read_orders: Callable[[], Iterable[tuple[int, Command]]]) -> dict[str, Beginning]:
    """The campaigns by id. `read_orders` yields all orders with their seqs, and is called twice if there are amendments."""
    orders: dict[str, dict[int, Command]] = {}
    for seq, order in read_orders():
        orders.setdefault(order.campaign, {})[seq] = _shortened(order)
    # Whether an amendment fits follows from the whole list; and whether later orders do, from the version that it gives.
    whole: dict[str, dict[int, Command]] = {name: {} for name, by_seq in orders.items() if _has_amendment(by_seq.values())}
    for seq, order in read_orders() if whole else ():
        if order.campaign in whole:
            whole[order.campaign][seq] = order
    by_name = (orders | whole).items()
    return {name: Beginning(min(by_seq), max(by_seq), decide(by_seq).stage in OVER) for name, by_seq in by_name}


def _has_amendment(orders: Iterable[Command]) -> bool:
    return any(isinstance(order, Amend) for order in orders)


def _shortened(order: Command) -> Command:
    return replace(order, targets=order.targets[:1]) if isinstance(order, AddTargets) else order
