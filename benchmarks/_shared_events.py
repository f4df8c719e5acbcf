"""A proxy that shares events among dispatchers, as EMQX does and Mosquitto 2.0 does not for `$` topics.

`python -m benchmarks._shared_events HOST PORT LISTEN` listens on LISTEN for dispatchers and connects each to the broker at
HOST:PORT. Each message for the dispatchers reaches one of them, chosen by a hash; the proxy acknowledges it for the others.
"""

import asyncio
import sys
import xmlrpc.client
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from zlib import crc32

import psutil
import uvloop
from supervisor.xmlrpc import SupervisorTransport

from benchmarks._ground import Ground
from benchmarks._servers import Server, answers, free_port, start_python
from manifold.sandbox.platform.programs import SERVICES, environment
from manifold.sandbox.platform.supervisord import HomeLayout
from manifold.sandbox.tap.packets import read_connect

REPLICAS = 2
_PUBLISH = 3
_PUBACK = b"\x40\x02"  # followed by the packet id; success in MQTT 5 as well


@contextmanager
def sharing(ground: Ground) -> Iterator[None]:
    """Replace the platform's dispatcher by two that share their events, for a block."""
    settings, port = ground.settings, free_port()
    logs = settings.home / "logs"
    with xmlrpc.client.ServerProxy(
        "http://127.0.0.1", SupervisorTransport(None, None, f"unix://{HomeLayout(settings.home).socket}")
    ) as supervisor:
        supervisor.supervisor.stopProcess(f"{SERVICES}:dispatcher-0")
    through = settings.model_copy(update={"mqtt_url": f"mqtt://127.0.0.1:{port}", "mqtt_shared": "off", "dispatchers": REPLICAS})
    addresses = (settings.host, str(settings.mqtt_port), str(port))

    def replica(number: int) -> Server:
        at, log = settings.dispatcher_port + number, logs / f"shared-{number}"
        health = f"http://{settings.host}:{at}/healthz"
        arguments = ("dispatcher", "--replica", str(number))
        return start_python(*arguments, port=at, log=log, env=environment(through), ready=lambda: answers(health))

    with (
        start_python(__name__, *addresses, port=port, log=logs / "sharing", env={}),
        replica(0) as first,
        replica(1) as second,
    ):
        ground.processes["dispatcher"] = [psutil.Process(first.pid), psutil.Process(second.pid)]
        yield


async def _serve(host: str, port: int, listen: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            from_broker, to_broker = await asyncio.open_connection(host, port)
            first, length, body = await _packet(reader)
            number = int(read_connect(body).client_id.rpartition("-")[2])
            to_broker.write(first + length + body)
            there = asyncio.create_task(_pass_on(reader, to_broker))
            try:
                await _share(from_broker, writer, to_broker, number)
            finally:
                there.cancel()
                to_broker.close()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", listen)
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


async def _share(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_broker: asyncio.StreamWriter, number: int
) -> None:
    """Pass packets on to replica `number`, except messages for another replica."""
    while True:
        first, length, body = await _packet(reader)
        if first[0] >> 4 == _PUBLISH:
            after_topic = 2 + int.from_bytes(body[:2])
            message = after_topic + (2 if first[0] & 0x06 else 0)
            assert body[message] < 128, "an event has few properties"
            of_message = crc32(body[message + 1 + body[message] :], crc32(body[:after_topic]))
            if of_message % REPLICAS != number:
                if first[0] & 0x06:
                    to_broker.write(_PUBACK + body[after_topic:message])
                continue
        writer.write(first + length + body)


async def _packet(reader: asyncio.StreamReader) -> tuple[bytes, bytes, bytes]:
    """Read one MQTT packet: its first byte, its length as it came, and the rest."""
    first, length, size = await reader.readexactly(1), b"", 0
    while not length or length[-1] & 0x80:
        length += await reader.readexactly(1)
        size |= (length[-1] & 0x7F) << 7 * (len(length) - 1)
    return first, length, await reader.readexactly(size)


if __name__ == "__main__":
    host, port, listen = sys.argv[1:]
    uvloop.run(_serve(host, int(port), int(listen)))
