"""The tap's metrics for Prometheus."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from manifold.sandbox.tap.service import Tap


class TapMetrics(Collector):
    """The tap's counters, collected on each scrape, so that forwarding packets does not pay for metrics."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def collect(self) -> Iterable[Metric]:
        """Return the metrics for `/metrics`."""
        tap = self._tap
        events = CounterMetricFamily("manifold_tap_events", "Events told, by kind.", labels=["event"])
        for event, count in tap.events.items():
            events.add_metric([event.value], count)
        yield events
        passed = CounterMetricFamily("manifold_tap_bytes", "Bytes passed, by direction.", labels=["to"])
        passed.add_metric(["broker"], tap.proxy.bytes_up)
        passed.add_metric(["client"], tap.proxy.bytes_down)
        yield passed
        counts = (
            ("connections", "Connections accepted.", tap.proxy.accepted),
            (
                "publisher_reconnects",
                "Times that the connection for events was lost and found.",
                max(tap.publisher.reconnects, 0),
            ),
            ("forgotten_early", "Publications forgotten for want of room.", tap.store.forgotten_early),
        )
        for name, meaning, value in counts:
            yield CounterMetricFamily(f"manifold_tap_{name}", meaning, value=value)
        levels = (
            ("open_connections", "Connections now.", len(tap.proxy.connections)),
            ("events_waiting", "Events that the broker has not confirmed.", tap.publisher.backlog),
            ("publications", "Publications remembered.", len(tap.store)),
        )
        for name, meaning, value in levels:
            yield GaugeMetricFamily(f"manifold_tap_{name}", meaning, value=value)
