"""Known presence of vehicles, reconciled with the broker's sessions."""

import asyncio
from functools import partial
from typing import Any

import pytest
from prometheus_client import REGISTRY
from pydantic import SecretStr
from redis.asyncio import Redis

from dispatcher._broker_api import BrokerApi, Session, session_of
from dispatcher._reconcile import NO_SESSION, OWNERS_PER_READ, KnownPresence, Reconciler, missed_event, read_presence
from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.contracts.events import Connected, Disconnected
from manifold.contracts.names import Owner
from manifold.contracts.seq import seq_of
from manifold.queues import Policy, Queues, connect
from manifold.queues.verbs.claims import Claim, UpdatePresence
from manifold.queues.verbs.fills import Enqueue
from manifold.settings import Settings
from tests.support.emqx_api import KEY, SECRET, emqx_api
from tests.support.servers import Server, free_port, wait_until

V = Owner("V")
AT = 1_704_083_700_000  # the time of the session list
EARLY, LATE = AT - 60_000, AT - 30_000
JUST_NOW = AT - 1_000

# The documented example of a client, without its counters.
ROW: dict[str, Any] = {
    "clientid": "01",
    "connected": True,
    "connected_at": "2024-01-01T12:34:56.789+08:00",
    "created_at": "2024-01-01T12:34:56.789+08:00",
    "clean_start": True,
    "expiry_interval": 0,
    "node": "emqx@127.0.0.1",
    "username": None,
    "is_persistent": False,
}


def session(connected: bool, connected_at_ms: int, *, resumed: bool = True, expiry_s: int = 300) -> Session:
    created_at_ms = connected_at_ms - 1000 if resumed else connected_at_ms
    return Session(V, connected, connected_at_ms, created_at_ms, clean_start=False, expiry_s=expiry_s)


def test_a_client_is_parsed_as_documented() -> None:
    assert session_of(ROW) == Session("01", True, 1_704_083_696_789, 1_704_083_696_789, clean_start=True, expiry_s=0)


@pytest.mark.parametrize("wrong", [{"clientid": "01"}, ROW | {"connected_at": "yesterday"}, ROW | {"connected_at": None}])
def test_an_invalid_client_is_reported(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a client as EMQX describes one"):
        session_of(wrong)


@pytest.mark.parametrize(
    ("known", "found", "event"),
    [
        pytest.param(KnownPresence("yes", EARLY), session(True, EARLY), None, id="both report it connected"),
        pytest.param(KnownPresence(), session(True, EARLY), Connected(V, EARLY, False, 300), id="its connection was missed"),
        pytest.param(
            KnownPresence("heard", 0), session(True, EARLY), Connected(V, EARLY, False, 300), id="known only from a heartbeat"
        ),
        pytest.param(
            KnownPresence("no", EARLY), session(True, LATE), Connected(V, LATE, False, 300), id="its reconnection was missed"
        ),
        pytest.param(
            KnownPresence("yes", EARLY, in_flight=True),
            session(True, LATE, resumed=False),
            Connected(V, LATE, True, 300),
            id="reconnected with a new session, and the entry in flight is lost",
        ),
        pytest.param(KnownPresence("yes", LATE), session(True, EARLY), None, id="the list is older than the known state"),
        pytest.param(KnownPresence(), session(True, JUST_NOW), None, id="it has just connected, with its own event"),
        pytest.param(
            KnownPresence("yes", EARLY),
            session(False, EARLY),
            Disconnected(V, AT, EARLY, 300, "away"),
            id="its disconnection was missed",
        ),
        pytest.param(
            KnownPresence("no", EARLY, in_flight=True),
            session(False, EARLY),
            None,
            id="disconnected, and its session holds the message",
        ),
        pytest.param(
            KnownPresence("yes", EARLY), None, Disconnected(V, AT, EARLY, 0, NO_SESSION), id="disconnected without a session"
        ),
        pytest.param(
            KnownPresence("no", EARLY, in_flight=True),
            None,
            Disconnected(V, AT, EARLY, 0, NO_SESSION),
            id="disconnected, and its session is lost with the entry in flight",
        ),
        pytest.param(KnownPresence("no", EARLY), None, None, id="disconnected without entries"),
        pytest.param(KnownPresence("heard", 0), None, None, id="recent heartbeat: presence expires by itself"),
        pytest.param(KnownPresence("yes", JUST_NOW), None, None, id="it connected while the list was read"),
    ],
)
def test_a_session_without_an_event_becomes_an_event(
    known: KnownPresence, found: Session | None, event: Connected | Disconnected | None
) -> None:
    assert missed_event(V, known, found, AT) == event


def test_an_unreachable_api_is_named_with_its_setting() -> None:
    settings = Settings(emqx_api_url=f"http://127.0.0.1:{free_port()}/api/v5", emqx_api_key="key")

    async def ask() -> None:
        async with BrokerApi(settings) as api:
            await api.session("V")

    with pytest.raises(Retryable, match="is emqx_api_url right"):
        asyncio.run(ask())


def test_an_unreachable_api_is_counted_and_retried(redis_server: Server) -> None:
    settings = Settings(emqx_api_url=f"http://127.0.0.1:{free_port()}/api/v5", reconcile_seconds=0.05)
    failures = partial(REGISTRY.get_sample_value, "manifold_dispatcher_reconcile_failures_total")
    before = failures() or 0

    async def compare() -> None:
        async with Redis(port=redis_server.port) as redis:
            reconciler = Reconciler(settings, Queues(redis, Policy.of(settings)), lambda *_: None)
            running = asyncio.create_task(reconciler.run())
            await asyncio.to_thread(wait_until, lambda: (failures() or 0) >= before + 2, what="two failures to be counted")
            running.cancel()

    asyncio.run(compare())


def test_a_starting_dispatcher_has_emqx_ban_revoked_vehicles(redis_server: Server) -> None:
    async def start() -> None:
        with emqx_api() as api:
            secret = SecretStr(SECRET)
            settings = Settings(emqx_api_url=api.url, emqx_api_key=KEY, emqx_api_secret=secret, reconcile_seconds=3600)
            async with Redis(port=redis_server.port) as redis:
                await redis.hset(keys.REVOKED_VEHICLES, "stolen", str(2**31 - 1))
                running = asyncio.create_task(Reconciler(settings, Queues(redis, Policy.of(settings)), lambda *_: None).run())
                await asyncio.to_thread(wait_until, lambda: "stolen" in api.bans, what="the ban")
                running.cancel()
                await redis.delete(keys.REVOKED_VEHICLES)

    asyncio.run(start())


@pytest.mark.parametrize("server", ["redis_server", "cluster"])
def test_presence_of_every_vehicle_is_found(request: pytest.FixtureRequest, server: str) -> None:
    place = request.getfixturevalue(server)
    url = f"redis://127.0.0.1:{place.port}" if server == "redis_server" else place.url
    vins = [f"KNOWN{n}" for n in range(OWNERS_PER_READ + 10)]

    async def look() -> dict[Owner, KnownPresence]:
        async with connect(url) as redis:
            queues = Queues(redis, Policy.of(Settings()))
            batch = queues.batch()
            for vin in vins:
                batch.add(vin, UpdatePresence(Connected(Owner(vin), AT, True, 0), False), AT)
            batch.add(vins[0], Enqueue([(seq_of(AT, 0, 0), "r")]), AT)
            batch.add(vins[0], Claim(), AT)
            await batch.run()
            return {owner: known async for found in read_presence(queues) for owner, known in found.items()}

    found = asyncio.run(look())
    assert {vin: found[Owner(vin)] for vin in vins} == {vin: KnownPresence("yes", AT, in_flight=vin == vins[0]) for vin in vins}
