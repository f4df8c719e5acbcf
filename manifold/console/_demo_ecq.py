"""The demo's compacted queues: many writes to few keys while the clients are offline, and what they receive on connecting."""

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

CLIENTS, WRITES, KEYS = 20, 200, 10
MAX_CONCURRENT_WRITES = 500  # writes awaiting their receipts
DELIVERY_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the step."""

    recorded_writes: int
    write_seconds: float  # duration of all writes
    received_messages: int  # by all clients together
    correct_clients: int  # clients that received exactly the newest message of each key, in the order of the writes


async def play_ecq(settings: Settings, platform: Publisher, run: str) -> Result:
    """Write messages to offline clients, connect the clients, and count what they receive."""
    clients = [Owner(f"climate-{run}-{n:02}") for n in range(CLIENTS)]
    began = time.monotonic()
    recorded_writes = await _write(platform, clients)
    write_seconds = time.monotonic() - began
    # Keys are written in turn, so the last KEYS writes are the newest message of each key.
    expected = [(f"key/{n % KEYS}", sha1_hex(_payload(n))) for n in range(WRITES - KEYS, WRITES)]
    async with Fleet(settings, clients, seed=int(run), behaviour=Behaviour(compacted_queues=True)) as fleet:
        await fleet.connect()
        with contextlib.suppress(TimeoutError):  # the counts below show what is missing
            await fleet.wait_for(lambda fleet: len(fleet.acknowledged) >= CLIENTS * KEYS, DELIVERY_WAIT_S)
        received_by_client = defaultdict(list)
        for message in fleet.received:
            received_by_client[message.vin].append((message.key, message.payload_sha1))
    correct_clients = sum(received_by_client[client] == expected for client in clients)
    received_messages = sum(map(len, received_by_client.values()))
    return Result(recorded_writes, write_seconds, received_messages, correct_clients)


async def _write(platform: Publisher, clients: list[Owner]) -> int:
    """Write each key in turn, to all clients; return how many writes were recorded."""
    recorded = 0
    writes = [(client, n) for n in range(WRITES) for client in clients]
    for start in range(0, len(writes), MAX_CONCURRENT_WRITES):
        batch = writes[start : start + MAX_CONCURRENT_WRITES]
        receipts = await asyncio.gather(*(platform.write(client, f"key/{n % KEYS}", _payload(n)) for client, n in batch))
        recorded += sum(receipt.status is ReceiptStatus.RECORDED for receipt in receipts)
    return recorded


def _payload(n: int) -> bytes:
    return b'{"version": %d}' % n
