"""A proxy that shares events among dispatchers. EMQX does this itself; Mosquitto 2.0 does not for topics that begin with `$`.

`python -m benchmarks._shared_events HOST PORT LISTEN` accepts dispatchers on port LISTEN and connects each to the broker at
HOST:PORT. The proxy passes each message to one dispatcher, chosen by a hash, and acknowledges it on behalf of the others.
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
    """Replace the platform's dispatcher by two dispatchers that share their events, until the block ends."""
    settings, port = ground.settings, free_port()
    logs = settings.home / "logs"
    with xmlrpc.client.ServerProxy(
        "http://127.0.0.1", SupervisorTransport(None, None, f"unix://{HomeLayout(settings.home).socket}")
    ) as supervisor:
        supervisor.supervisor.stopProcess(f"{SERVICES}:dispatcher-0")
    through_proxy = settings.model_copy(
        update={"mqtt_url": f"mqtt://127.0.0.1:{port}", "mqtt_shared": "off", "dispatchers": REPLICAS}
    )
    addresses = (settings.host, str(settings.mqtt_port), str(port))

    def replica(number: int) -> Server:
        http_port, log = settings.dispatcher_port + number, logs / f"shared-{number}"
        health = f"http://{settings.host}:{http_port}/healthz"
        arguments = ("dispatcher", "--replica", str(number))
        return start_python(*arguments, port=http_port, log=log, env=environment(through_proxy), ready=lambda: answers(health))

    with (
        start_python(__name__, *addresses, port=port, log=logs / "sharing", env={}),
        replica(0) as first,
        replica(1) as second,
    ):
        ground.processes["dispatcher"] = [psutil.Process(first.pid), psutil.Process(second.pid)]
        yield


async def _serve(host: str, port: int, listen: int) -> None:
    """Accept dispatchers on the port `listen`, and connect each to the broker at `host`:`port`."""

    async def serve_dispatcher(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            from_broker, to_broker = await asyncio.open_connection(host, port)
            first, length, body = await _read_packet(reader)
            number = int(read_connect(body).client_id.rpartition("-")[2])
            to_broker.write(first + length + body)
            forwarding = asyncio.create_task(_forward(reader, to_broker))
            try:
                await _forward_share(from_broker, writer, to_broker, number)
            finally:
                forwarding.cancel()
                to_broker.close()
        writer.close()

    server = await asyncio.start_server(serve_dispatcher, "127.0.0.1", listen)
    await server.serve_forever()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


async def _forward_share(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_broker: asyncio.StreamWriter, number: int
) -> None:
    """Forward packets of the broker to replica `number`, except messages for another replica, which are acknowledged here."""
    while True:
        first, length, body = await _read_packet(reader)
        if first[0] >> 4 == _PUBLISH:
            # The body has the topic, for QoS above 0 the packet id, the properties with their length, and the payload.
            has_packet_id = bool(first[0] & 0x06)
            topic_end = 2 + int.from_bytes(body[:2])
            properties = topic_end + (2 if has_packet_id else 0)  # index of the byte with the length of the properties
            assert body[properties] < 128, "an event has few properties"
            payload = properties + 1 + body[properties]
            if crc32(body[payload:], crc32(body[:topic_end])) % REPLICAS != number:
                if has_packet_id:
                    to_broker.write(_PUBACK + body[topic_end:properties])
                continue
        writer.write(first + length + body)


async def _read_packet(reader: asyncio.StreamReader) -> tuple[bytes, bytes, bytes]:
    """Read one MQTT packet; return its first byte, the encoded length, and the body."""
    first, length, size = await reader.readexactly(1), b"", 0
    while not length or length[-1] & 0x80:
        length += await reader.readexactly(1)
        size |= (length[-1] & 0x7F) << 7 * (len(length) - 1)
    return first, length, await reader.readexactly(size)


if __name__ == "__main__":
    host, port, listen = sys.argv[1:]
    uvloop.run(_serve(host, int(port), int(listen)))
