"""Parsing of MONITOR lines, the recorder's movable clock, and the connection cutter."""

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random

from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from tests.faults.cutter import Cutter
from tests.faults.history import What
from tests.faults.watchers import lines_of
from tests.support.servers import ROOT

AT = "+1800000000.250000 [0 lua] "


def command(*words: object) -> str:
    quoted = (str(word).replace("\\", "\\\\").replace('"', '\\"') for word in words)
    return AT + " ".join(f'"{word}"' for word in quoted)


def test_every_kind_of_monitor_line_is_parsed() -> None:
    record = OutcomeRecord("V1", 7, Outcome.DELIVERED, 1_800_000_000_000)
    told = [
        *lines_of(command("ZADD", keys.pending("V1"), "NX", 7, 7, 8, 8)),
        *lines_of(command("HSET", keys.inflight("V1"), "seq", 7, "published_at", 1)),
        *lines_of(command("ZADD", keys.parked("V1"), 8, 8)),
        *lines_of(command("XADD", keys.OUTCOMES, "*", "o", record.to_wire().decode())),
    ]
    assert [(line.what, line.vin, line.seq) for line in told] == [
        (What.ENQUEUED, "V1", 7),
        (What.ENQUEUED, "V1", 8),
        (What.PUBLISHED, "V1", 7),
        (What.PARKED, "V1", 8),
        (What.ENDED, "V1", 7),
    ]
    assert {line.at for line in told} == {1_800_000_000.25}


def test_lines_that_change_no_entry_are_ignored() -> None:
    for words in (("HSET", keys.inflight("V1"), "deadline", 5), ("ZRANGE", keys.pending("V1"), 0, 0), ("GET", "x")):
        assert lines_of(command(*words)) == []


def test_the_fake_wall_clock_leaves_monotonic_time_alone(tmp_path: Path) -> None:
    lines = [
        "import sys, time",
        "from pathlib import Path",
        "import manifold.recorder",
        "from manifold.recorder import _parser",
        "from manifold.contracts.seq import SeqSource, unix_ms_of, wall_clock_ms",
        "from tests.faults.clocked_recorder import Clock, deceive",
        "clock = Clock(Path(sys.argv[1]))",
        "true, monotonic = wall_clock_ms(), time.monotonic()",
        "deceive(clock.file)",
        "clock.step(-300)",
        "assert -301_000 < wall_clock_ms() - true < -290_000",
        "assert -301 < _parser.datetime.now(_parser.UTC).timestamp() - true / 1000 < -290",
        "seqs = SeqSource(0)",
        "first = seqs.next()",
        "clock.step(-600)",
        "assert seqs.next() > first",
        "assert time.monotonic() - monotonic < 10",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines), str(tmp_path / "clock")], cwd=ROOT, check=True)


def test_a_cut_interrupts_a_packet_in_the_middle() -> None:
    async def scenario() -> bytes:
        got = bytearray()
        arrived, over = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            try:
                while part := await reader.read(100):
                    got.extend(part)
                    arrived.set()
            except ConnectionResetError:
                pass
            over.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, Cutter("127.0.0.1", server.sockets[0].getsockname()[1], Random(1)) as cutter:
            reader, writer = await asyncio.open_connection("127.0.0.1", cutter.port)
            assert await reader.readexactly(5) == b"hello"
            writer.write(b"whole.")
            async with asyncio.timeout(10):
                await arrived.wait()
            assert cutter.cut(1.0) == 1
            writer.write(bytes(1000))
            async with asyncio.timeout(10):
                await over.wait()
            writer.close()
        return bytes(got)

    got = asyncio.run(scenario())
    assert got.startswith(b"whole.")
    assert len(b"whole.") < len(got) < len(b"whole.") + 1000
