"""The archive of the golden rows, in two parts: before the first run and before the second.

All times are fixed. Only the nonces and key ids for sealing signals are random.
"""

import gzip
import json
from io import BytesIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from manifold.contracts.ecq import EcqAck
from manifold.contracts.envelope import INLINE, Envelope, Stream, segment_path, to_arrow
from manifold.contracts.messages import sha1_hex
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import seq_of
from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.records import RawRecord, StatusRecord, refused_envelope
from manifold.contracts.topics import TRIGGER
from manifold.lake.sealing import MAGIC, NONCE_BYTES, TAG_BYTES
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import (
    NOON_MS,
    at,
    data,
    duplicate,
    ecq_ack,
    ecq_expired,
    ecq_rewind,
    ecq_write,
    envelope,
    inline,
    outcome,
    seq_at,
    trigger,
)
from tests.pipelines.signal_makers import Door, readings

A, B, C = "1M8GDM9AXKP042788", "5YJBT6ZE7T7002409", "1HGCM82633A004352"  # valid VINs by ISO 3779; TEST-… are invalid
HOUR = 3_600_000
SEALED = b"no readings"  # of a device, which no file may show
NO_SUCH_KEY = b"2026-03-01.000000000000"
NOBODY_OPENS = MAGIC + bytes((len(NO_SUCH_KEY),)) + NO_SUCH_KEY + bytes(NONCE_BYTES + TAG_BYTES)


def write_first(lake: SparkLake, door: Door) -> None:
    """Write all of the first hour."""
    _fanout(lake)
    _outcomes(lake)
    _ecq(lake)
    _signals(lake, door)
    _of_others(lake)
    _poisoned(lake)


def write_second(lake: SparkLake, door: Door) -> None:
    """Write the second hour: updates, repetitions and contradictions of known messages."""
    late = HOUR
    lake.write(
        Stream.TRIGGER,
        [
            trigger(late, [A, "TEST-2"], "d1"),
            trigger(late + 1, [A, None]),
            inline(late + 2, [B], b"inline bytes"),
            duplicate(late + 3, 1, [A, B, C], "d1"),
        ],
    )
    lake.write(
        Stream.DATA,
        [data(late + 10, "late", b"after its trigger"), data(late + 11, "d2", b"two"), data(late + 12, "d2", b"not two")],
    )
    lake.write(Stream.DATA, [data(31, "d1", b"one"), data(late + 13, "d1", b"one")], node=9)  # 31 is in the first part too
    lake.write(
        Stream.OUTCOME,
        [
            outcome(late + 20, A, 1, Outcome.CANCELLED),
            outcome(late + 21, A, late),
            outcome(late + 22, "TEST-1", 3, Outcome.EXPIRED),
        ],
    )
    lake.write(Stream.OUTCOME, [outcome(50, A, 1), envelope(56, Stream.OUTCOME, "outcomes/x", b"{")], node=9)  # copies again
    lake.write(
        Stream.ECQ,
        [ecq_write(late + 30, "c1", "a", b"newest"), ecq_ack(late + 31, "c1", 204, epoch_ms=207), ecq_ack(late + 32, "c1", 202)],
    )
    lake.write(Stream.ECQ, [ecq_write(201, "c1", "a", b"old"), ecq_ack(205, "c1", 202), ecq_rewind(late + 33, "c2")], node=9)
    lake.write(
        Stream.XRAY_RAW,
        [
            door.raw(late + 40, "dev-1", readings(("humidity", 40, "%")), captured=302),
            door.raw(late + 41, "dev-1", SEALED, captured=late + 41),
            door.refused(late + 43, b"sent twice", digest="a" * 64),
            door.raw(late + 44, "dev-3", readings(("humidity", 40, "%")), captured=302),
        ],
    )
    lake.write(Stream.XRAY_RAW, [door.raw(302, "dev-1", readings(("humidity", 40, "%")))], node=9)  # a copy
    lake.write(
        Stream.XRAY_STATUS, [door.status(late + 50, "dev-1", "online", seen=400), door.status(late + 51, "dev-1", "offline")]
    )


def _fanout(lake: SparkLake) -> None:
    lake.write(
        Stream.TRIGGER,
        [
            trigger(1, [A, B, C], "d1", applied=True),
            trigger(2, [A, "TEST-1", A], "d2"),
            trigger(3, ["TEST-1"], "late"),
            inline(4, [A, B], b"inline bytes"),
            inline(5, [C], b"inline bytes"),
            duplicate(6, 1, [C, B, A], "d1"),
            _text(7, {"ids": [C], "request_id": "r7", "data": "grüß"}, headers={INLINE: "text"}),
            inline(9, [A], b"squatted"),
            trigger(10, [A, 7]),
            _bytes(11, b"{no JSON"),
            trigger(12, []),
            _bytes(13, b"[1]"),
            _text(14, {"ids": [A], "request_id": "r14"}),
            trigger(15, ["V/1"]),
            trigger(16, [A], refused_because="said the door"),
            trigger(17, [A], refused_because=" "),
            envelope(18, Stream.TRIGGER, "some/other/topic", b"{}"),
            trigger(19, [A], request_id="a b"),
            _text(20, {"ids": [A], "request_id": "r20", "data": "no base64!"}),
            _text(21, {"ids": [A], "request_id": "r21", "data": "eA==", "data_id": "d1"}),
            _bytes(22, b"[" * 200),
            _text(23, {"ids": A, "request_id": "r23", "data_id": "d1"}),
            _text(24, {"ids": [A], "data_id": "d1"}),
            _bytes(25, b"\xff\xfe"),
        ],
    )
    lake.write(Stream.TRIGGER, [trigger(3, ["TEST-1"], "late"), inline(4, [A, B], b"inline bytes")], node=8)  # copies
    lake.write(Stream.TRIGGER, [trigger(5, [B], "d3", node=2), trigger(9, [C], "d1", node=2)], node=2)
    lake.write(
        Stream.DATA,
        [
            data(0, "d1", b"one"),
            data(8, sha1_hex(b"squatted"), b"other bytes"),
            data(30, "d2", b"two"),
            data(31, "d1", b"one"),
            data(32, "d1", b"not one"),
            data(33, "d 1", b"a name that cannot be one"),
            data(34, "empty", b""),
            data(35, "d1", b"one", refused_because="said the door"),
            envelope(36, Stream.DATA, "some/other/topic", b"x"),
            data(37, sha1_hex(b"inline bytes"), b"inline bytes"),
            data(38, "d1", b"one", refused_because="\t\n"),
            data(42, "d4", b"later"),
        ],
    )
    lake.write(
        Stream.DATA,
        [data(29, "d2", b"two", node=2), data(40, "d3", bytes(range(256)), node=2), data(41, "d4", b"first", node=2)],
        node=2,
    )


def _outcomes(lake: SparkLake) -> None:
    topic = "outcomes/x"
    never_sent = OutcomeRecord(C, seq_at(5), Outcome.SUPERSEDED, NOON_MS + 55, reason="a newer one came")
    lake.write(
        Stream.OUTCOME,
        [
            outcome(50, A, 1),
            outcome(51, A, 1, Outcome.FAILED),
            outcome(52, B, 1, Outcome.EXPIRED),
            outcome(53, "TEST-9", 49),  # for no entry
            outcome(54, A, 2),
            envelope(55, Stream.OUTCOME, topic, never_sent.to_wire()),
            envelope(56, Stream.OUTCOME, topic, b"{"),
            _json(57, Stream.OUTCOME, topic, {"vin": A, "seq": seq_at(2), "outcome": "eaten", "ended_ms": NOON_MS}),
            _json(58, Stream.OUTCOME, topic, {"vin": "V/1", "seq": seq_at(2), "outcome": "failed", "ended_ms": NOON_MS}),
            _json(59, Stream.OUTCOME, topic, {"vin": A, "seq": 1 << 63, "outcome": "failed", "ended_ms": NOON_MS}),
            _json(60, Stream.OUTCOME, topic, {"vin": A, "seq": 1, "outcome": "failed", "ended_ms": NOON_MS, "attempts": "many"}),
            _json(
                61, Stream.OUTCOME, topic, {"vin": "TEST-1", "seq": seq_at(2), "outcome": "failed", "ended_ms": NOON_MS - HOUR}
            ),
        ],
    )
    lake.write(Stream.OUTCOME, [outcome(50, A, 1), envelope(56, Stream.OUTCOME, topic, b"{")], node=8)  # copies


def _ecq(lake: SparkLake) -> None:
    acks = "outcomes/ecq/c1"
    lake.write(
        Stream.ECQ,
        [
            ecq_write(201, "c1", "a", b"old"),
            ecq_write(202, "c1", "a/b", b""),
            ecq_write(203, "c2", "a", b"x", applied=True),
            ecq_write(204, "c1", "a", b"new"),
            ecq_ack(205, "c1", 202),
            ecq_ack(206, "c1", 202, acked_ms=201),
            ecq_rewind(207, "c1"),
            ecq_rewind(208, "c2", seq_at(203)),
            ecq_rewind(209, "c2", "2026-03-01T12:00:00Z"),
            ecq_ack(210, "c2", 203, epoch_ms=208),
            ecq_write(211, "c1", "k" * 513, b"x"),
            ecq_write(212, "w", "k", b"x"),
            ecq_rewind(213, "c1", "yesterday"),
            envelope(214, Stream.ECQ, "$ECQ/c1/k", b"x"),
            envelope(215, Stream.ECQ, acks, b"no json"),
            _json(216, Stream.ECQ, acks, {"client_id": "c1", "seq": 1, "acked_ms": 10**18}),
            envelope(217, Stream.ECQ, acks, EcqAck("a b", 1, 1).to_wire()),
            ecq_write(218, "c1", "k", b"x", refused_because="said the door"),
            ecq_write(219, "c3", "ключ", b"\x00\xff"),
            ecq_expired(220, "c1", 201),
        ],
    )
    lake.write(Stream.ECQ, [ecq_write(204, "c1", "a", b"new"), ecq_rewind(207, "c1")], node=8)  # copies


def _signals(lake: SparkLake, door: Door) -> None:
    hot = readings(("temperature", 20.5, "celsius"), ("temperature", 99, "celsius"))
    damaged = bytearray(door.keys.seal(b"x", seq=seq_at(306)))
    damaged[-1] ^= 1
    signed = Refusal(Code.SIGNATURE_ERROR, "signed by somebody else")
    forged = [door.keys.seal(b"forged", seq=seq_at(ms)) for ms in (308, 309)]
    lake.write(
        Stream.XRAY_RAW,
        [
            door.raw(301, "dev-1", hot, metadata={"battery": 7, "location": {"latitude": 1.5, "longitude": -2.25}}),
            door.raw(302, "dev-1", readings(("humidity", 40, "%"))),
            door.raw(303, "dev-1", readings(("humidity", 40, "%")), captured=302),  # a repeat of 302
            door.raw(304, "dev-1", readings(("humidity", 41, "%")), captured=302),
            door.raw(305, "dev-2", SEALED),
            door.raw(306, "dev-2", b"x", sealed=bytes(damaged)),
            door.raw(307, "dev-2", b"x", sealed=NOBODY_OPENS),
            refused_envelope(seq_at(308), at(308), Stream.XRAY_RAW, signed, forged[0], devices=["dev-1"], digest="f" * 64),
            refused_envelope(seq_at(309), at(309), Stream.XRAY_RAW, signed, forged[1], devices=["dev-1"], digest="f" * 64),
            door.refused(310, b"sent twice", digest="a" * 64),
            door.refused(311, b"without a digest", "dev-1", "dev-2"),
            Envelope(seq_at(312), at(312), Stream.XRAY_RAW, "xray.raw.v1", b"no record"),
            door.raw(313, "dev-1", b"a", sealed=b"not sealed"),
            _raw_record(314, "a device"),
        ],
    )
    lake.write(Stream.XRAY_RAW, [door.raw(315, "dev-1", hot, captured=301, node=3)], node=3)  # a repeat by another service
    lake.write(
        Stream.XRAY_STATUS,
        [
            door.status(400, "dev-1", "online", {"battery": 50, "uptime": 5}),
            door.status(401, "dev-1", "online", seen=400),
            door.status(402, "dev-1", "online", seen=400, correlation_id="another"),
            door.status(403, "dev-2", "low_battery", {"battery": 3, "signalStrength": -80, "temperature": 21.5}),
            _status_record(404, "asleep"),
            Envelope(seq_at(405), at(405), Stream.XRAY_STATUS, "device.status.v1/dev-1", b"{}"),
            door.refused(406, b"no status", digest="b" * 64, stream=Stream.XRAY_STATUS),
        ],
    )


def _of_others(lake: SparkLake) -> None:
    folder = "dt=2026-03-01/hour=12"
    lines: list[dict[str, object]] = [
        {"topic": TRIGGER, "received_at": "2026-03-01T12:00:01.250Z", "payload": _batch("o1", [A, "TEST-3"], "depot-1")},
        {"topic": TRIGGER, "received_at": NOON_MS + 1900, "payload": _batch("o2", [B], "depot-2"), "depot": 7},
        {
            "topic": TRIGGER,
            "publish_received_at": NOON_MS + 1950,
            "payload": json.dumps({"ids": [C], "request_id": "o3", "data": "dGV4dA=="}),
            "pub_props": {"User-Property": {"author": "x", "sdv-inline": "text"}},
        },
        {"topic": TRIGGER, "received_at": NOON_MS + 1960, "payload": "{}"},
    ]
    _put(lake, f"trigger/{folder}/depot-7.jsonl", _lines(lines) + b'{"topic": "no payload"}\n\n')
    of_data: list[dict[str, object]] = [
        {"topic": "$SDV-FANOUT/data/depot-1", "seq": seq_of(NOON_MS + 2000, 600, 0), "payload": "tiles"},
        {"topic": "$SDV-FANOUT/data/depot-2", "seq": seq_of(NOON_MS + 2001, 600, 0), "payload_base64": "AP9maWxlcw=="},
        {"topic": "$SDV-FANOUT/data/lost", "seq": seq_of(NOON_MS + 2002, 600, 0), "payload": "a\ufffdb"},
        {"topic": "$SDV-FANOUT/data/depot-1", "seq": seq_of(NOON_MS + 2001, 600, 0), "payload": "the same seq again"},
    ]
    _put(lake, f"data/{folder}/depot-7.json.gz", gzip.compress(_lines(of_data), mtime=0))
    ended = OutcomeRecord("TEST-2", seq_at(1), Outcome.DELIVERED, NOON_MS + 60_000, NOON_MS + 59_000, 1)
    topics = ["outcomes/TEST-2", "outcomes/TEST-2"]
    foreign = {"topic": topics, "payload": [ended.to_wire().decode(), "{}"], "received_at": [NOON_MS + 60_000, NOON_MS + 60_001]}
    _put(lake, f"outcome/{folder}/depot.parquet", _parquet(pa.table(foreign), compression="snappy"))
    with_seqs = pa.table(
        {
            "seq": pa.array([seq_of(NOON_MS + 2100, 601, 0), seq_of(NOON_MS + 2101, 601, 0)], pa.uint64()),
            "topic": [TRIGGER, TRIGGER],
            "payload": [_batch("o4", [A], "d1").encode(), _batch("o5", [A, ""], "d1").encode()],
            "note": ["other columns", "are let be"],
        }
    )
    _put(lake, "trigger/elsewhere/2026-03-01T12:30:00Z_N0.parquet", _parquet(with_seqs))


def _poisoned(lake: SparkLake) -> None:
    folder = "dt=2026-03-01/hour=12"
    _put(lake, f"trigger/{folder}/torn.jsonl.gz", gzip.compress(b"{}", mtime=0)[:9])
    _put(lake, f"trigger/{folder}/none.jsonl", b"no line of it\nis a message\n")
    mixed = [{"topic": TRIGGER, "seq": seq_at(900), "payload": "{}"}, {"topic": TRIGGER, "received_at": NOON_MS, "payload": "{}"}]
    _put(lake, f"trigger/{folder}/mixed.jsonl", _lines(mixed))
    _put(lake, f"data/{folder}/empty.parquet", b"")
    _put(lake, segment_path(Stream.DATA, seq_at(901), 0), b"not Parquet at all, but long enough")
    _put(lake, f"outcome/{folder}/without-payload.parquet", _parquet(pa.table({"seq": [seq_at(902)], "topic": ["t"]})))
    negative = pa.table({"seq": [-1], "topic": ["t"], "payload": [b"x"]})
    _put(lake, f"data/{folder}/negative.parquet", _parquet(negative))
    holes = pa.table({"seq": [seq_at(903), None], "topic": ["t", "t"], "payload": [b"x", b"y"]})
    _put(lake, f"data/{folder}/holes.parquet", _parquet(holes))
    misnamed = to_arrow([trigger(910, [A], node=5), trigger(911, [B], node=6), trigger(912, [C], node=5)])
    _put(lake, segment_path(Stream.TRIGGER, seq_at(910, 5), 5), _parquet(misnamed))
    _put(lake, "trigger/_unfinished/part-0.jsonl", _lines([{"topic": TRIGGER, "seq": seq_at(920), "payload": "{}"}]))
    _put(lake, f"trigger/{folder}/.part-0.jsonl", _lines([{"topic": TRIGGER, "seq": seq_at(921), "payload": "{}"}]))


def _bytes(ms: int, payload: bytes) -> Envelope:
    return envelope(ms, Stream.TRIGGER, TRIGGER, payload)


def _text(ms: int, fields: dict[str, object], headers: dict[str, str] | None = None) -> Envelope:
    return envelope(ms, Stream.TRIGGER, TRIGGER, json.dumps(fields).encode(), headers=headers or {})


def _json(ms: int, stream: Stream, topic: str, fields: dict[str, object]) -> Envelope:
    return envelope(ms, stream, topic, json.dumps(fields).encode())


def _batch(request_id: str, vins: list[str], data_id: str) -> str:
    return json.dumps({"ids": vins, "request_id": request_id, "data_id": data_id})


def _raw_record(ms: int, device_id: str) -> Envelope:
    record = RawRecord(device_id, (NOON_MS + ms) * 1000, "0" * 64, f"key {ms}", "v1", None, NOBODY_OPENS)
    return Envelope(seq_at(ms), at(ms), Stream.XRAY_RAW, f"xray.raw.v1/{device_id}", msgspec.msgpack.encode(record))


def _status_record(ms: int, status: str) -> Envelope:
    record = StatusRecord("dev-1", status, (NOON_MS + ms) * 1000)
    return Envelope(seq_at(ms), at(ms), Stream.XRAY_STATUS, "device.status.v1/dev-1", msgspec.msgpack.encode(record))


def _lines(fields: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in fields)


def _parquet(table: pa.Table, compression: str = "zstd") -> bytes:
    sink = BytesIO()
    pq.write_table(table, sink, compression=compression)
    return sink.getvalue()


def _put(lake: SparkLake, path: str, content: bytes) -> None:
    file = lake.file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
