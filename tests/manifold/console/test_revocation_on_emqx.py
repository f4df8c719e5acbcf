"""`manifold certificates revoke` with EMQX: the vehicle is banned through its API."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis import Redis

from dispatcher import revocations
from manifold.contracts import keys
from manifold.queues import connect
from manifold.settings import Settings
from tests.support.console import manifold
from tests.support.emqx_api import KEY, SECRET, EmqxApi, emqx_api
from tests.support.servers import free_port

VIN = "WVW%2F1"  # EMQX must receive a literal percent sign


@pytest.fixture
def api(redis: Redis) -> Iterator[EmqxApi]:
    del redis  # empty
    with emqx_api() as found:
        yield found


@pytest.fixture
def env(api: EmqxApi, url: str, tmp_path: Path) -> dict[str, str]:
    return api.env | {"MANIFOLD_REDIS_URL": url, "MANIFOLD_HOME": str(tmp_path), "MANIFOLD_MQTT_URL": "mqtt://127.0.0.1:1"}


def revoke(env: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    return manifold("certificates", "revoke", VIN, *more, env=env)


def reconciled(api: EmqxApi, url: str) -> revocations.Reconciled:
    """Run the reconciliation of a starting dispatcher."""
    settings = Settings(emqx_api_url=api.url, emqx_api_key=KEY, emqx_api_secret=SecretStr(SECRET), redis_url=SecretStr(url))

    async def do() -> revocations.Reconciled:
        async with connect(url) as redis:
            return await revocations.reconcile(settings, redis)

    return asyncio.run(do())


def test_a_revoked_vehicle_is_banned_until_it_is_reinstated(api: EmqxApi, env: dict[str, str], redis: Redis) -> None:
    done = revoke(env, "--days", "10")
    assert (done.returncode, done.stderr) == (0, "")
    until = datetime.now(UTC) + timedelta(days=10)
    assert done.stdout == f"EMQX bans {VIN} until {until:%Y-%m-%d}: its connection has ended, and new ones are refused\n"
    assert api.bans[VIN]["as"] == "clientid"
    assert abs(datetime.fromisoformat(api.bans[VIN]["until"]) - until) < timedelta(minutes=5)

    assert "already" in revoke(env, "--days", "5").stdout
    assert json.loads(revoke(env, "--days", "20", "--json").stdout)["changed"]
    assert datetime.fromisoformat(api.bans[VIN]["until"]) > until + timedelta(days=9)

    assert revoke(env, "--undo").stdout == f"{VIN} may connect to EMQX again\n"
    assert (api.bans, redis.hgetall(keys.REVOKED_VEHICLES)) == ({}, {})
    assert revoke(env, "--undo").stdout == f"{VIN} was not revoked\n"


def test_a_permanent_ban_stays(api: EmqxApi, env: dict[str, str]) -> None:
    api.bans[VIN] = {"as": "clientid", "who": VIN, "by": "mgmt_api", "until": "infinity"}
    assert "already" in revoke(env).stdout
    assert api.bans[VIN]["until"] == "infinity"


def test_a_failing_api_is_named_and_a_dispatcher_bans_later(api: EmqxApi, env: dict[str, str], url: str) -> None:
    away = revoke(env | {"MANIFOLD_EMQX_API_URL": f"http://127.0.0.1:{free_port()}/api/v5"})
    assert away.returncode == 1
    assert f"{VIN} is on record as revoked, but EMQX may let it in until a dispatcher" in away.stderr
    assert "is emqx_api_url right?" in away.stderr
    assert "MANIFOLD_EMQX_API_URL" in away.stderr

    refused = revoke(env | {"MANIFOLD_EMQX_API_SECRET": "another"}, "--undo")
    assert refused.returncode == 1
    assert f"{VIN} is still revoked" in refused.stderr
    assert "401 BAD_API_KEY_OR_SECRET" in refused.stderr
    assert "are emqx_api_key and emqx_api_secret right?" in refused.stderr
    assert "another" not in refused.stderr

    assert reconciled(api, url) == revocations.Reconciled([VIN], 0, [])
    assert VIN in api.bans
    assert reconciled(api, url) == revocations.Reconciled([], 1, [])


def test_expired_bans_are_forgotten_and_without_records_emqx_is_not_called(api: EmqxApi, url: str, redis: Redis) -> None:
    redis.hset(keys.REVOKED_VEHICLES, "gone", "1")
    assert reconciled(api, url) == revocations.Reconciled([], 0, ["gone"])
    assert reconciled(api, url) == revocations.Reconciled([], 0, [])
    assert api.requests == []


def test_a_service_name_and_a_broker_without_an_api_are_refused(api: EmqxApi, env: dict[str, str]) -> None:
    service = manifold("certificates", "revoke", "sdv-pub-x", env=env)
    assert (service.returncode, api.requests) == (1, [])
    assert "acl.conf" in service.stderr
    nowhere = revoke({name: value for name, value in env.items() if "EMQX" not in name})
    assert nowhere.returncode == 1
    assert "MANIFOLD_EMQX_API_URL" in nowhere.stderr


def test_without_redis_the_vehicle_is_still_banned(api: EmqxApi, env: dict[str, str]) -> None:
    done = revoke(env | {"MANIFOLD_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"})
    assert done.returncode == 1
    assert "EMQX bans it, but it is not on record" in done.stderr
    assert VIN in api.bans
