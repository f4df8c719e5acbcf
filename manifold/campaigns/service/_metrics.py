"""The campaigner's metrics, for Prometheus."""

from prometheus_client import Counter, Gauge

LEADS = Gauge("manifold_campaigner_leads", "1 while this campaigner is the active one")
OPEN = Gauge("manifold_campaigner_open_campaigns", "campaigns that are not over, as far as the active campaigner knows")
RELEASED = Counter("manifold_campaigner_released", "targets released")
DECISIONS = Counter("manifold_campaigner_decisions", "decisions published", ["do"])
DECISIONS.labels("note")  # the alert of a rule: a counter that begins with its first increment shows no increase
READ_SECONDS = Gauge("manifold_campaigner_read_seconds", "how long it took last to read what is new and fold it")
FOLD_LAG_SECONDS = Gauge(
    "manifold_campaign_fold_lag_seconds", "age of the oldest fact in what was folded last; 0: nothing was new"
)
LEFT_ALONE = Gauge(
    "manifold_campaigner_left_alone", "campaigns of which nothing is decided any more, because of an unexpected error"
)
STUCK = Gauge("manifold_campaigner_stuck", "1 while the active campaigner decides nothing because of a problem")
