"""Least privilege in Redis: commands that each service must not run. The dispatch and API cases run with these rights."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry

from manifold.campaigns.service._presence import find_present
from manifold.contracts import keys
from manifold.contracts.brakes import OFF, Brake, Braking, EntryTrigger
from manifold.contracts.signals import keys as of_door
from manifold.queues import Policy, Queues, connect
from manifold.settings import Settings
from tests.support.redis_users import PROGRAM, SERVICES, RedisUsers, refused
from tests.support.servers import Server, start_redis, stopping

Act = Callable[[Redis], Any]
OF_PER_VEHICLE, OF_PER_DEVICE = keys.pending("V1"), of_door.idempotency("device", "key")
WRITES = "return redis.call('SET', KEYS[1], 1)"

FOR_NOBODY: dict[str, Act] = {
    "lose everything": lambda redis: redis.flushall(),
    "list all keys at once": lambda redis: redis.keys("*"),
    "read how Redis is set": lambda redis: redis.config_get("*"),
    "read the users": lambda redis: redis.acl_list(),
    "hear what others say": lambda redis: redis.execute_command("MONITOR"),
    "fill Redis with functions": lambda redis: redis.function_load("#!lua name=f\nredis.register_function('f', function() end)"),
    "forget functions": lambda redis: redis.function_flush(),
    "stop Redis": lambda redis: redis.shutdown(nosave=True),
    "make it a copy of another": lambda redis: redis.replicaof("127.0.0.1", "1"),
}
MUST_NOT: list[tuple[str, str, Act]] = [
    *((service, what, act) for service in SERVICES for what, act in FOR_NOBODY.items()),
    *((service, "name keys", lambda redis: redis.scan(0)) for service in ("recorder", "campaigner", "signals", "api")),
    *((service, "name a key", lambda redis: redis.randomkey()) for service in ("recorder", "campaigner", "signals", "api")),
    ("api", "write a queue", lambda redis: redis.zadd(OF_PER_VEHICLE, {"1": 1})),
    ("api", "write a queue in a script", lambda redis: redis.eval(WRITES, 1, OF_PER_VEHICLE)),
    ("api", "say that the queues are whole", lambda redis: redis.set(keys.LOADED, 1)),
    ("api", "read what the door remembers", lambda redis: redis.get(of_door.idempotency("device", "key"))),
    ("campaigner", "forget who is here", lambda redis: redis.delete(keys.presence("V1"))),
    ("campaigner", "write a queue", lambda redis: redis.zadd(OF_PER_VEHICLE, {"1": 1})),
    ("campaigner", "write a queue in a script", lambda redis: redis.eval(WRITES, 1, OF_PER_VEHICLE)),
    ("campaigner", "read a payload", lambda redis: redis.get(keys.data("d"))),
    ("campaigner", "drop what is to be withdrawn", lambda redis: redis.zrem(keys.releases("c"), 7)),
    ("campaigner", "keep a window open", lambda redis: redis.zrem(keys.WINDOWS, 7)),
    ("campaigner", "give seqs", lambda redis: redis.hset(keys.recorders(0), "place", "claim")),
    ("campaigner", "record an outcome", lambda redis: redis.xadd(keys.OUTCOMES, {"o": "x"})),
    ("api", "read brakes", lambda redis: redis.hgetall(keys.BRAKES)),
    ("api", "take a brake off in a script", lambda redis: redis.eval(WRITES, 1, keys.BRAKES)),
    ("api", "read what is to be withdrawn", lambda redis: redis.zrange(keys.releases("c"), 0, -1)),
    ("signals", "take a brake off", lambda redis: redis.hdel(keys.BRAKES, "c")),
    ("signals", "keep a window open", lambda redis: redis.zrem(keys.WINDOWS, 7)),
    ("signals", "read a queue", lambda redis: redis.zrange(OF_PER_VEHICLE, 0, -1)),
    ("signals", "write a queue in a script", lambda redis: redis.eval(WRITES, 1, OF_PER_VEHICLE)),
    ("signals", "record an outcome", lambda redis: redis.xadd(keys.OUTCOMES, {"o": "x"})),
    ("recorder", "forget what the door remembers", lambda redis: redis.delete(OF_PER_DEVICE)),
    ("recorder", "say how long the queues are", lambda redis: redis.delete(keys.QUEUE_STATS)),
    ("dispatcher", "forget what the door remembers", lambda redis: redis.delete(OF_PER_DEVICE)),
    ("dispatcher", "give seqs", lambda redis: redis.hset(keys.recorders(0), "place", "claim")),
    ("dispatcher", "forget what was published twice", lambda redis: redis.delete(keys.dedupe("digest"))),
]


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> RedisUsers:
    return RedisUsers(tmp_path_factory.mktemp("users"))


@pytest.fixture(scope="module")
def server(users: RedisUsers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with stopping(start_redis(tmp_path_factory.mktemp("redis"), users=users.file)) as server:
        yield server


@pytest.mark.parametrize(("service", "act"), [pytest.param(s, act, id=f"{s}: {what}") for s, what, act in MUST_NOT])
def test_a_forbidden_command_is_refused(service: str, act: Act, users: RedisUsers, server: Server) -> None:
    with users.connect(service, server.port) as redis:
        assert redis.ping()
        with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)no permission|can't access|can't run|NOPERM"):
            act(redis)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_needs_its_password(service: str, server: Server) -> None:
    at_once = Retry(NoBackoff(), 0)  # the library retries a refused login for seconds
    with (
        Redis(port=server.port, username=service, password="guessed", retry=at_once) as redis,
        pytest.raises(AuthenticationError),
    ):
        redis.ping()


def test_data_of_services_survives_a_redis_restart(tmp_path: Path) -> None:
    """Redis replays transactions of its file, scripts included, as the user default, and drops what that user may not run."""
    users = RedisUsers(tmp_path, exact=True)
    written = {OF_PER_VEHICLE: "1", keys.done("V1"): "2"}
    with stopping(start_redis(tmp_path / "redis", append_only=True, users=users.file)) as server:
        with users.connect("recorder", server.port) as redis:
            redis.eval("for n, key in ipairs(KEYS) do redis.call('SET', key, ARGV[n]) end", 2, *written, *written.values())
        server.stop()
    with stopping(start_redis(tmp_path / "redis", append_only=True, users=users.file)) as server:
        with users.connect("recorder", server.port) as redis:
            assert redis.mget(*written) == [b"1", b"2"]
        with users.connect("tests", server.port) as redis:
            assert refused(redis) == []


def test_users_without_rights_and_rights_without_users_are_named() -> None:
    with pytest.raises(SystemExit, match=r"with passwords .*'stranger'"):
        PROGRAM["acl"](dict.fromkeys((*SERVICES, "stranger"), "secret"))
    with pytest.raises(SystemExit, match="users with rights are"):
        PROGRAM["acl"]({"api": "secret"})


def test_campaigns_are_braked_and_withdrawn_with_each_services_own_rights(users: RedisUsers, server: Server) -> None:
    """Recorders put brakes on, the campaigner takes them off, and dispatchers withdraw what was released."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:

            async def of(service: str) -> Queues:
                redis = connect(users.url(service, server.port))
                stack.push_async_callback(redis.aclose)
                return Queues(redis, Policy.of(Settings()))

            recorder, dispatcher, campaigner = [await of(name) for name in ("recorder", "dispatcher", "campaigner")]
            paused, resumed = Brake(5, "pause"), Brake(6, OFF)
            await recorder.load_brakes([Braking("c", paused)])
            assert await recorder.brakes_since()
            await recorder.store_trigger(7, EntryTrigger("c", "d", is_release=True, until_ms=1))
            assert (await dispatcher.brakes()).brakes == {"c": paused}
            assert (await campaigner.brakes()).brakes == {"c": paused}
            assert await campaigner.turn_brake("c", paused, resumed)
            assert await recorder.forget_brakes(7) == 1
            assert await find_present(campaigner, ["V1"], 1, 1) == set()
            await campaigner.redis.hset(keys.recorders("campaigner"), "place", "claim")
            assert (await dispatcher.release_seqs(["c"]), await dispatcher.closed_windows(2)) == ([[7]], [7])
            await dispatcher.drop_release_seqs("c", [7])
            await dispatcher.drop_windows([7])
            assert (await dispatcher.release_seqs(["c"]), await dispatcher.closed_windows(2)) == ([[]], [])

    asyncio.run(scenario())


def test_the_signals_service_works_with_its_own_rights(users: RedisUsers, server: Server) -> None:
    with users.connect("signals", server.port) as redis:
        assert redis.eval(WRITES, 1, OF_PER_DEVICE) == b"OK"
        assert redis.hset(of_door.nonces("device", 1).decode(), "nonce", 1) == 1
        assert redis.hset(keys.recorders(7), "place", "claim") == 1
