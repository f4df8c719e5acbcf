"""The demo's stage of compacted queues: many writes of few keys while the clients are away, and what they get when they come."""

import asyncio
import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass

from manifold.contracts.messages import ReceiptStatus, sha1_hex
from manifold.contracts.names import Owner
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Behaviour, Fleet
from manifold.settings import Settings

CLIENTS, WRITES, KEYS = 20, 1000, 10
MAX_CONCURRENT_WRITES = 500  # writes that wait for their receipts
DELIVERY_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of it."""

    recorded: int  # writes that were accepted
    seconds: float  # that took
    arrived: int  # messages, all clients together
    right: int  # clients that got the newest message of each key, once, in the order in which they were written


async def play_ecq(settings: Settings, platform: Publisher, run: str) -> Seen:
    """Write to clients that are away, then have them come."""
    clients = [Owner(f"climate-{run}-{n:02}") for n in range(CLIENTS)]
    began = time.monotonic()
    recorded = await _write(platform, clients)
    seconds = time.monotonic() - began
    wanted = [(f"key/{n % KEYS}", sha1_hex(_payload(n))) for n in range(WRITES - KEYS, WRITES)]
    async with Fleet(settings, clients, seed=int(run), behaviour=Behaviour(compacted_queues=True)) as fleet:
        await fleet.connect()
        with contextlib.suppress(TimeoutError):  # the check that follows says what is missing
            await fleet.wait_for(lambda fleet: len(fleet.acknowledged) >= CLIENTS * KEYS, DELIVERY_WAIT_S)
        got = defaultdict(list)
        for message in fleet.received:
            got[message.vin].append((message.key, message.payload_sha1))
    right = sum(got[client] == wanted for client in clients)
    return Seen(recorded, seconds, sum(map(len, got.values())), right)


async def _write(platform: Publisher, clients: list[Owner]) -> int:
    """Each key in turn, to all clients; how many were recorded."""
    recorded = 0
    writes = [(client, n) for n in range(WRITES) for client in clients]
    for start in range(0, len(writes), MAX_CONCURRENT_WRITES):
        some = writes[start : start + MAX_CONCURRENT_WRITES]
        receipts = await asyncio.gather(*(platform.write(client, f"key/{n % KEYS}", _payload(n)) for client, n in some))
        recorded += sum(receipt.status is ReceiptStatus.RECORDED for receipt in receipts)
    return recorded


def _payload(n: int) -> bytes:
    return b'{"version": %d}' % n
