"""Messages of compacted queues become rows: each once despite repetition, and bad ones are quarantined."""

import json

from manifold.contracts.ecq import EcqAck
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE, QUARANTINE, SEGMENTS
from pipelines.ingest.chunks import ingest_and_audit
from pipelines.ingest.publish import publish
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, ecq_ack, ecq_expired, ecq_rewind, ecq_write, envelope, seq_at

MESSAGES = [
    ecq_write(1, "c1", "a", b"old"),
    ecq_write(2, "c1", "a/b", b""),
    ecq_write(3, "c2", "a", b"x", applied=True),
    ecq_write(4, "c1", "a", b"new"),
    ecq_ack(5, "c1", 2),
    ecq_ack(6, "c1", 2, acked_ms=1),
    ecq_rewind(7, "c1"),
    ecq_rewind(8, "c2", seq_at(3)),
    ecq_expired(9, "c1", 4),
]
STATE = [
    ("c1", -1, at(7), seq_at(7), "rewound"),
    ("c1", seq_at(2), at(1), 0, "acknowledged"),
    ("c1", seq_at(4), at(9), 0, "expired"),
    ("c2", seq_at(3) - 1, at(8), seq_at(8), "rewound"),
]


def test_writes_rewinds_and_acknowledgements_become_rows(spark_lake: SparkLake) -> None:
    spark_lake.write(Stream.ECQ, MESSAGES)
    written, judged = ingest_and_audit(spark_lake.run("run", ms=60_000))
    assert judged is not None
    assert judged.failures + judged.warnings == ()
    publish(spark_lake.catalog, "run")

    assert spark_lake.rows(ECQ_PAYLOAD, "seq", "client_id", "key", "ts", "payload") == [
        (seq_at(1), "c1", "a", at(1), b"old"),
        (seq_at(2), "c1", "a/b", at(2), b""),
        (seq_at(3), "c2", "a", at(3), b"x"),
        (seq_at(4), "c1", "a", at(4), b"new"),
    ]
    assert spark_lake.rows(ECQ_INDEX, "seq", "client_id", "key", "ts", "applied") == [
        (seq_at(1), "c1", "a", at(1), False),
        (seq_at(2), "c1", "a/b", at(2), False),
        (seq_at(3), "c2", "a", at(3), True),
        (seq_at(4), "c1", "a", at(4), False),
    ]
    assert spark_lake.rows(ECQ_STATE) == STATE
    assert spark_lake.rows(ECQ_SEQNO) == [("c1", seq_at(4)), ("c2", seq_at(3))]
    assert (written.read["ecq"], written.refused) == (9, 0)


def test_bad_messages_are_quarantined_and_good_ones_ingested(spark_lake: SparkLake) -> None:
    topic = "outcomes/ecq/c1"
    spark_lake.write(
        Stream.ECQ,
        [
            ecq_write(1, "c1", "k" * 513, b"x"),
            ecq_write(2, "w", "k", b"x"),
            ecq_rewind(3, "c1", "yesterday"),
            envelope(4, Stream.ECQ, "$ECQ/c1/k", b"x"),
            envelope(5, Stream.ECQ, topic, b"no json"),
            envelope(6, Stream.ECQ, topic, json.dumps({"client_id": "c1", "seq": 1, "acked_ms": 10**18}).encode()),
            envelope(7, Stream.ECQ, topic, EcqAck("a b", 1, 1).to_wire()),
            ecq_write(8, "c1", "k", b"x", refused_because="said the door"),
            ecq_write(9, "c1", "k", b"good"),
        ],
    )
    assert spark_lake.ingest().refused == 8
    assert spark_lake.rows(QUARANTINE, "seq") == [seq_at(ms) for ms in range(1, 9)]
    assert set(spark_lake.rows(QUARANTINE, "stream")) == {"ecq"}
    assert spark_lake.rows(ECQ_PAYLOAD, "payload") == [b"good"]
    assert spark_lake.rows(ECQ_STATE) == []


def test_a_message_in_two_segments_is_ingested_once(spark_lake: SparkLake) -> None:
    spark_lake.write(Stream.ECQ, [ecq_write(1, "c1", "a", b"x"), ecq_ack(2, "c1", 1)])
    spark_lake.ingest("first")
    spark_lake.write(Stream.ECQ, [ecq_write(1, "c1", "a", b"x"), ecq_ack(2, "c1", 1), ecq_write(3, "c1", "a", b"y")], node=1023)
    spark_lake.ingest("second")
    assert spark_lake.rows(ECQ_PAYLOAD, "seq") == spark_lake.rows(ECQ_INDEX, "seq") == [seq_at(1), seq_at(3)]
    assert len(spark_lake.rows(ECQ_STATE)) == 1
    assert len(spark_lake.rows(SEGMENTS)) == 2
