"""The recorder's metrics, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

MESSAGES = Counter("manifold_recorder_messages", "messages recorded, by stream and what became of them", ["stream", "status"])
BYTES = Counter("manifold_recorder_bytes", "payload bytes recorded", ["stream"])
HANDOFF_SECONDS = Histogram("manifold_recorder_handoff_seconds", "one group of messages: offered to the queues", buckets=_FAST)
HANDOFF_LAG_SECONDS = Histogram(
    "manifold_recorder_handoff_lag_seconds", "from the acceptance of a message to its being in the queues", buckets=_FAST
)
LOOP_LAG_SECONDS = Gauge("manifold_recorder_loop_lag_seconds", "by how much the event loop was late for its last appointment")
DIRECT_ENQUEUE = Gauge("manifold_recorder_direct_enqueue", "1 while accepted messages reach the queues at once")
ENTRIES = Counter("manifold_recorder_entries", "entries offered to the queues", ["result"])
ECQ_SUPERSEDED = Counter(
    "manifold_recorder_ecq_superseded", "messages of compacted queues that a newer one of their key superseded"
)
OFFERED_AGAIN = Counter("manifold_recorder_offered_again", "messages offered again after a gap")
HELD_BYTES = Gauge("manifold_recorder_held_bytes", "messages that were taken from the broker and are not settled")
DROPPED = Counter("manifold_recorder_dropped", "messages of QoS 0 that were dropped because too much was not settled")
RECEIPTS = Counter("manifold_recorder_receipts", "receipts, by result: sent, lost, foreign_topic", ["result"])
REBUILD_NEEDED = Gauge(
    "manifold_recorder_rebuild_needed", "1 while nothing is handed over because the queues have lost what is pending"
)
OUTCOME_LAG_SECONDS = Gauge(
    "manifold_recorder_outcome_lag_seconds", "how long the oldest outcome that was taken from Redis and is not on disk has waited"
)
LAKE_BROKEN_RULES = Gauge("manifold_lake_broken_rules", "rules that the newest judgement of the lake found broken", ["severity"])
LAKE_AGE_SECONDS = Gauge(
    "manifold_lake_age_seconds", "age of the oldest segment of the last days that is not in the lake; 0: all of them are"
)
