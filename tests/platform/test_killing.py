"""Whichever single process dies during a batch, every vehicle gets every accepted message in order."""

import asyncio
import os
import signal
from itertools import pairwise

import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt, ReceiptStatus
from manifold.contracts.names import Owner
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet, vins
from manifold.sandbox.platform import supervise
from manifold.settings import Settings

VEHICLES, BATCHES = 20, 12
RECOVERY_S = 120.0


async def run_despite_oom(publisher: Publisher, named: list[Owner], request_id: str) -> Receipt:
    """Publish triggers until the recorder answers, as a platform that needs the receipt does."""
    patience = AsyncRetrying(retry=retry_if_exception_type(Retryable), wait=wait_fixed(0.5), stop=stop_after_delay(RECOVERY_S))
    return await patience(publisher.trigger, named, request_id, f"data-{request_id.split('_')[1]}")


async def kill_in_the_middle(settings: Settings, kind: str) -> tuple[Fleet, dict[str, int]]:
    """Send batches and kill `kind` between the fourth and fifth; return the fleet and the seq of each request."""
    named = vins(VEHICLES, seed=sum(kind.encode()))
    accepted: dict[str, int] = {}
    async with Fleet(settings, named, seed=7) as fleet, Publisher(settings) as publisher:
        await fleet.connect()
        await publisher.data(f"data-{kind}", kind.encode())
        for n in range(BATCHES):
            if n == 4:
                for pid in supervise.status(settings).processes[kind]:
                    os.kill(pid, signal.SIGKILL)
            request_id = f"task_{kind}_{n}"
            receipt = await run_despite_oom(publisher, named, request_id)
            assert receipt.status in (ReceiptStatus.RECORDED, ReceiptStatus.DUPLICATE)
            accepted[request_id] = receipt.duplicate_of or receipt.seq
        wanted = {(vin, request_id) for vin in named for request_id in accepted}
        try:
            await fleet.wait_for(lambda f: wanted <= {(m.vin, m.request_id) for m in f.received}, RECOVERY_S)
        except TimeoutError:
            missing = wanted - {(m.vin, m.request_id) for m in fleet.received}
            pytest.fail(f"{len(missing)} of {len(wanted)} never came, for example {sorted(missing)[:3]}")
    return fleet, accepted


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dispatcher", "recorder", "redis", "tap", "broker"])
def test_a_process_killed_during_a_batch_loses_and_reorders_no_message(platform: Settings, kind: str) -> None:
    fleet, accepted = asyncio.run(kill_in_the_middle(platform, kind))

    first: dict[str, list[int]] = {}
    for message in fleet.received:
        seqs = first.setdefault(message.vin, [])
        if (seq := accepted[str(message.request_id)]) not in seqs:
            seqs.append(seq)
    assert all(earlier < later for seqs in first.values() for earlier, later in pairwise(seqs))
    assert supervise.up(platform)  # waits until everything is healthy again
