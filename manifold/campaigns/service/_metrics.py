"""The campaigner's metrics, for Prometheus."""

from prometheus_client import Counter, Gauge

LEADS = Gauge("manifold_campaigner_leads", "1 while this campaigner is the active one")
OPEN = Gauge("manifold_campaigner_open_campaigns", "campaigns that are not over, as far as the active campaigner knows")
RELEASED = Counter("manifold_campaigner_released", "targets released")
DECISIONS = Counter("manifold_campaigner_decisions", "decisions published", ["do"])
READ_SECONDS = Gauge("manifold_campaigner_read_seconds", "how long it took last to read what is new and fold it")
STUCK = Gauge("manifold_campaigner_stuck", "1 while the active campaigner decides nothing because of a problem")
