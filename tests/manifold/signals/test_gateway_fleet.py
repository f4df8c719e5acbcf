"""The simulated gateways against a real service: each kind of message gets its disposition."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

from manifold.contracts.signals import topology
from manifold.contracts.signals.records import RawRecord, read_raw
from manifold.sandbox.fleet.gateways import (
    CODES,
    DUPLICATES,
    MIX,
    ONLY_GOOD,
    REFERRING,
    Kind,
    SignalMessage,
    SignalMix,
    bursts,
    publish,
)
from manifold.signals.dead_letters import open_dead_letters
from tests.manifold.signals.gateway import SECRET, Door, Gateway
from tests.support.servers import wait_until

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def of_kind(messages: list[SignalMessage], *kinds: Kind) -> list[SignalMessage]:
    return [message for message in messages if message.kind in kinds]


def key_of(record: RawRecord) -> tuple[str, datetime, str]:
    return record.device_id, EPOCH + timedelta(microseconds=record.captured_us), record.content_digest


def test_a_seed_determines_the_messages() -> None:
    first, same, other = (list(SignalMix(seed, 20, SECRET).messages(500, AT)) for seed in (1, 1, 2))
    later = list(SignalMix(1, 20, SECRET).messages(500, AT + timedelta(hours=1)))

    assert first == same
    assert {m.kind for m in first} == set(Kind)
    assert not {m.headers["x-nonce"] for m in first} & {m.headers["x-nonce"] for m in (*other, *later)}
    assert [m.kind for m in later] == [m.kind for m in first]
    assert len({m.row for m in of_kind(first, Kind.GOOD)}) == len(of_kind(first, Kind.GOOD))
    assert set(CODES) | DUPLICATES | {Kind.GOOD} == set(Kind)
    assert {m.kind for m in SignalMix(1, 20, SECRET, shares=ONLY_GOOD).messages(100, AT)} == {Kind.GOOD}


def test_bursts_keep_every_message_in_order_and_references_come_after_targets() -> None:
    messages = list(SignalMix(3, 20, SECRET).messages(500, AT))
    cut = list(bursts(messages, 3))

    assert [message for burst in cut for message in burst] == messages
    assert max(map(len, cut)) > 5
    assert not [message for burst in cut for message in burst[1:] if message.kind in REFERRING]
    seen: set[str] = set()
    for message in messages:
        if message.kind in (Kind.RESENT, Kind.REPLAYED):
            assert message.headers["x-nonce"] in seen
        seen.add(message.headers["x-nonce"])


def test_each_kind_of_message_has_its_disposition(door: Door, gateway: Gateway) -> None:
    shares = dict.fromkeys(MIX, 0.06)
    sent = list(SignalMix(7, 20, SECRET, shares=shares, prefix="mixed").messages(300, datetime.now(UTC)))
    good = of_kind(sent, Kind.GOOD)
    assert {message.kind for message in sent} == set(Kind)

    assert asyncio.run(publish(door.settings, sent, seed=7)) == len(sent)

    bad = {message.correlation_id: message.code for message in sent if message.code}
    wait_until(lambda: gateway.count(topology.DEAD) >= len(bad), what="the dead letters")
    wait_until(lambda: gateway.count(topology.PROCESSED) >= len(good), what="the processed messages")
    wait_until(lambda: not gateway.count(topology.RAW) and not gateway.count(topology.RETRY))

    async def codes() -> dict[str, str]:
        async with open_dead_letters(door.settings) as letters:
            return {str(one.message.headers["x-correlation-id"]): one.code for one in await letters.take_oldest(len(sent))}

    assert asyncio.run(codes()) == bad
    assert gateway.count(topology.PROCESSED) == len(good)
    recorded = door.recorded()
    kept = Counter(key_of(read_raw(e.payload)) for e in recorded if e.refused_because is None)
    assert kept == Counter(message.row for message in good)
    refused = Counter((e.refused_because or "").partition(":")[0] for e in recorded if e.refused_because)
    assert refused == Counter(bad.values())
