"""The metrics of a dispatcher, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

EVENTS = Counter("manifold_dispatcher_events", "Events from the broker that were handled", ["event"])
REFUSED_EVENTS = Counter("manifold_dispatcher_refused_events", "Messages on event topics that are not an event of a vehicle")
MERGED = Counter("manifold_dispatcher_merged_events", "Signs and subscriptions that waited, and that a later one made needless")
SHED = Counter(
    "manifold_dispatcher_shed_events", "Connections of one vehicle, begun or ended, of which too many waited: the oldest"
)
DROPPED_SIGNS = Counter("manifold_dispatcher_dropped_signs", "Signs with QoS 0 that came while too many vehicles' events waited")
WAKES = Counter("manifold_dispatcher_wakes", "Owners that a wake-up named")
PUBLISHED = Counter("manifold_dispatcher_published", "Publishes that were handed to the broker")
UNCONFIRMED = Gauge("manifold_dispatcher_unconfirmed_publishes", "Publishes that the broker has not confirmed")
BACKLOG = Gauge("manifold_dispatcher_backlog", "Claimed entries that wait for room in the publish window, or for the broker")
REASON_CODES = Counter("manifold_dispatcher_publish_reasons", "PUBACKs to the dispatcher's own publishes", ["code"])
DELIVERED = Counter("manifold_dispatcher_delivered", "Entries that a vehicle acknowledged")
ECQ_DELIVERED = Counter("manifold_dispatcher_ecq_delivered", "Messages of compacted queues that a client acknowledged")
ECQ_PASSED_OVER = Counter(
    "manifold_dispatcher_ecq_passed_over", "Messages of compacted queues that could not be delivered: a rewind brings them back"
)
OUTCOMES = Counter("manifold_dispatcher_outcomes", "Outcomes that were handed to the recorder", ["outcome"])
REDELIVERIES = Counter("manifold_dispatcher_redeliveries", "Entries that were claimed to be published once more")
ATTEMPTS = Histogram(
    "manifold_dispatcher_attempts", "Publishes that an entry took until it was acknowledged", buckets=(1, 2, 3, 5, 10, 20)
)
RELEASED = Counter("manifold_dispatcher_released", "Entries that went back to pending", ["reason"])
PARKED = Counter("manifold_dispatcher_parked", "Entries that stepped aside because their data has not come")
ACK_SECONDS = Histogram(
    "manifold_dispatcher_ack_seconds",
    "From the publish to the vehicle's acknowledgement",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600),
)
BRAKES_AGE_SECONDS = Gauge(
    "manifold_dispatcher_brakes_age_seconds", "How long ago what this dispatcher knows of the campaigns' brakes was asked for"
)
BEYOND_RECALL = Gauge(
    "manifold_campaign_beyond_recall", "Entries of a stopped campaign that were published before, by the last walk", ["campaign"]
)
JOBS = Gauge("manifold_dispatcher_jobs", "Events that wait for their turn or are being handled")
BATCH_SECONDS = Histogram(
    "manifold_dispatcher_round_seconds",
    "One round: decide, one round trip to Redis",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 10),
)
GIVEN_UP = Counter("manifold_dispatcher_spoilt", "Verbs given up because the vehicle's keys in Redis are of a wrong type")
REDIS_UP = Gauge("manifold_dispatcher_redis_up", "Whether the last round trip to Redis succeeded")
LOOP_LAG_SECONDS = Gauge("manifold_dispatcher_loop_lag_seconds", "By how much the event loop was late for its last appointment")
PAYLOAD_LOADS = Counter(
    "manifold_dispatcher_payload_loads", "Payloads that were not in the cache, by where they were found", ["where"]
)
RECONCILED = Counter("manifold_dispatcher_reconciled", "Lost events that were recovered from the broker's REST API", ["event"])
RECONCILE_FAILURES = Counter("manifold_dispatcher_reconcile_failures", "Comparisons with the broker's sessions that failed")
CACHED_BYTES = Gauge("manifold_dispatcher_payload_cache_bytes", "Payloads that are kept in memory")

# Totals over all queues, from the last queue statistics: every replica reports the same.
ENTRIES = {
    "pending": Gauge("manifold_queues_pending_entries", "Entries that wait, those in flight left out"),
    "parked": Gauge("manifold_queues_parked_entries", "Entries whose data has not come"),
    "in_flight": Gauge("manifold_queues_in_flight_entries", "Entries that were published and are not acknowledged"),
}
OLDEST_PENDING_SECONDS = Gauge("manifold_queues_oldest_pending_seconds", "Age of the oldest entry that is not acknowledged")
ECQ_MESSAGES = {
    "pending": Gauge("manifold_queues_ecq_pending_messages", "Messages of compacted queues that wait, those in flight left out"),
    "live": Gauge("manifold_queues_ecq_live_messages", "Messages that are the newest of their keys, acknowledged or not"),
    "in_flight": Gauge("manifold_queues_ecq_in_flight_messages", "Messages that were published and are not acknowledged"),
}
ECQ_OLDEST_PENDING_SECONDS = Gauge(
    "manifold_queues_ecq_oldest_pending_seconds", "Age of the oldest message of a compacted queue that is not acknowledged"
)
ECQ_WAITING_CLIENTS = Gauge("manifold_queues_ecq_waiting_clients", "Clients with something pending in their compacted queues")
WAITING_VEHICLES = Gauge("manifold_queues_waiting_vehicles", "Vehicles with something pending or in flight")
PRESENT = Gauge("manifold_queues_present_vehicles", "Vehicles that are here and listening")
QUEUE_STATS_AGE_SECONDS = Gauge("manifold_queue_stats_age_seconds", "How long ago the last walk over all queues was begun")
