"""The metrics of the AMQP door, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

MESSAGES = Counter("signals_messages", "messages: processed, status, duplicate, refused, retried, expired", ["outcome"])
ERRORS = Counter("signals_errors", "refused messages, by code", ["code"])
BYTES = Counter("signals_bytes", "bytes of bodies, as delivered")
PROCESSING_SECONDS = Histogram("signals_processing_seconds", "from delivery to acknowledgement", buckets=_FAST)
GROUP_MESSAGES = Histogram("signals_group_messages", "messages settled together", buckets=(1, 2, 5, 10, 20, 50, 100, 500))
IN_HAND = Gauge("signals_in_hand", "messages that were delivered and are not acknowledged")
DEPTH = Gauge("signals_queue_depth", "messages that wait in a queue", ["queue"])
BACKLOG_AGE_SECONDS = Gauge("signals_backlog_age_seconds", "how long what comes from the raw queue may have waited")
CONNECTED = Gauge("signals_connected", "1 while the door is connected to RabbitMQ and consumes")
WAITING = Gauge("signals_waiting", "1 while processing is paused because a server is unavailable or blocks publishers")
REJECTED_PUBLISHES = Counter("signals_rejected_publishes", "publishes that a full queue has rejected", ["queue"])
FOREIGN = Counter("signals_foreign", "messages that came by a binding that is not the door's", ["queue"])
REPLIES = Counter("signals_replies", "errors for reply_to: sent, foreign (to a queue that gets none), lost", ["result"])
LOOP_LAG_SECONDS = Gauge("signals_loop_lag_seconds", "by how much the event loop was late for its last appointment")
