"""Unreadable packets do not use up the receive maximum for good."""

import asyncio
from pathlib import Path

import httpx
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.topics import Sign, sign_topic
from manifold.messaging.mqtt import Mqtt
from tests.support.careless import GOOD, careless
from tests.support.servers import Server, answers, free_port, start_python, wait_until

RECEIVE_MAXIMUM = 20


def test_any_number_of_unreadable_packets_is_counted_and_acknowledged(
    tmp_path: Path, redis_server: Server, mosquitto: Server
) -> None:
    many, port = 3 * RECEIVE_MAXIMUM, free_port()

    async def scenario() -> None:
        async with careless(mosquitto.port) as cable, Mqtt(f"mqtt://127.0.0.1:{mosquitto.port}", "UNREADABLE") as vehicle:
            env = {
                "MANIFOLD_HOME": str(tmp_path),
                "MANIFOLD_MQTT_URL": f"mqtt://127.0.0.1:{cable.port}",
                "MANIFOLD_MQTT_SHARED": "off",
                "MANIFOLD_MQTT_RECEIVE_MAXIMUM": str(RECEIVE_MAXIMUM),
                "MANIFOLD_REDIS_PORT": str(redis_server.port),
                "MANIFOLD_DISPATCHER_PORT": str(port),
            }
            log, health = tmp_path / "dispatcher.log", f"http://127.0.0.1:{port}/healthz"
            server = await asyncio.to_thread(
                start_python, "dispatcher", "--replica", "0", port=port, log=log, env=env, ready=lambda: answers(health)
            )
            try:
                for _ in range(many):
                    await vehicle.publish(sign_topic("UNREADABLE", Sign.HEARTBEAT), b"", user_properties=[("name", GOOD)])
                await vehicle.publish(sign_topic("READABLE", Sign.HEARTBEAT), b"")
                redis = Redis(port=redis_server.port)
                await asyncio.to_thread(
                    wait_until, lambda: redis.exists(keys.presence("READABLE")), what="the next message to be read"
                )
                told = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{port}/metrics")
                assert f"manifold_dispatcher_refused_events_total {many:.1f}" in told.text
                assert not redis.exists(keys.presence("UNREADABLE"))
            finally:
                server.kill()

    asyncio.run(scenario())
