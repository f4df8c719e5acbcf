"""The API's metrics for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("manifold_api_requests", "Requests that were answered", ["route", "status"])
SECONDS = Histogram(
    "manifold_api_seconds",
    "From a request to the end of its answer",
    ["route"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
LOOKUPS = Gauge("manifold_api_lookups", "Questions to lake and archive that are being answered, or wait for a thread")
