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
        events = CounterMetricFamily("manifold_tap_events", "Events published, by kind.", labels=["event"])
        for event, count in tap.events.items():
            events.add_metric([event.value], count)
        yield events
        passed = CounterMetricFamily("manifold_tap_bytes", "Bytes passed, by direction.", labels=["to"])
        passed.add_metric(["broker"], tap.proxy.bytes_up)
        passed.add_metric(["client"], tap.proxy.bytes_down)
        yield passed
        yield CounterMetricFamily("manifold_tap_connections", "Connections accepted.", tap.proxy.accepted)
        reconnects = max(tap.publisher.reconnects, 0)
        yield CounterMetricFamily("manifold_tap_publisher_reconnects", "Reconnections of the connection for events.", reconnects)
        forgotten = tap.store.forgotten_early
        yield CounterMetricFamily("manifold_tap_forgotten_early", "Publications forgotten for want of room.", forgotten)
        yield GaugeMetricFamily("manifold_tap_open_connections", "Connections now.", len(tap.proxy.connections))
        backlog = tap.publisher.backlog
        yield GaugeMetricFamily("manifold_tap_events_waiting", "Events that the broker has not confirmed.", backlog)
        yield GaugeMetricFamily("manifold_tap_publications", "Publications remembered.", len(tap.store))
