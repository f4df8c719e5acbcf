"""The platform's client: one that fails to enter leaves nothing behind."""

import asyncio
import hashlib
import json
import socket
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from manifold.contracts.errors import Permanent
from manifold.messaging.publisher import Publisher
from manifold.settings import Settings
from tests.manifold.messaging.test_mqtt import DYNAMIC_SECURITY, run
from tests.support.servers import free_port, start_mosquitto, stopping


def other_tasks() -> set[str]:
    """The names of all tasks but this one."""
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


def hashed(password: str) -> dict[str, Any]:
    """A password as Mosquitto's dynamic security stores it."""
    salt, iterations = bytes(12), 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
    return {"password": b64encode(digest).decode(), "salt": b64encode(salt).decode(), "iterations": iterations}


@pytest.mark.skipif(DYNAMIC_SECURITY is None, reason="this Mosquitto cannot refuse a subscription: it lacks its dynamic security")
def test_a_publisher_whose_subscription_is_refused_disconnects(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, mqtt_port=free_port(), mqtt_password=SecretStr("secret"))
    user = {"username": settings.mqtt_username_publisher} | hashed("secret")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"defaultACLAccess": {"subscribe": False}, "clients": [user]}))
    plugin = f"plugin {DYNAMIC_SECURITY}\nplugin_opt_config_file {rules}"

    async def scenario() -> None:
        before = other_tasks()
        with pytest.raises(Permanent, match=r"the broker refuses .* \(not_authorized\)"):
            await Publisher(settings).__aenter__()
        assert other_tasks() == before

    with stopping(start_mosquitto(tmp_path, port=settings.mqtt_port, extra=plugin)):
        run(scenario())


def test_a_publisher_that_is_cancelled_while_it_connects_disconnects(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = other_tasks()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            publisher = Publisher(Settings(home=tmp_path, mqtt_port=silent.getsockname()[1]))
            entering = asyncio.create_task(publisher.__aenter__())
            connection, _ = await asyncio.to_thread(silent.accept)
            with connection:
                entering.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await entering
                assert other_tasks() == before

    run(scenario())
