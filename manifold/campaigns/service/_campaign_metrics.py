"""Prometheus metrics for each open campaign, for at most `MAX_CAMPAIGNS` campaigns and `MAX_WAVES` waves of each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.campaigns.gates import SUCCESSES
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.standing import Status
from manifold.contracts.seq import wall_clock_ms

MAX_CAMPAIGNS, MAX_WAVES = 50, 10
OTHERS = "others"  # the wave label of all further waves, which are counted together
_ALWAYS_SHOWN = (Status.WAITING, Status.RELEASED)  # statuses that are shown even if their count is 0


class CampaignMetrics(Collector):
    """Metrics of the open campaigns that the active campaigner follows, computed on each scrape."""

    def __init__(self) -> None:
        self._shown: list[tuple[str, Campaign]] = []
        self._connected: Mapping[str, int] = {}

    def show(self, campaigns: Iterable[tuple[str, Campaign]], connected: Mapping[str, int]) -> None:
        """Show these campaigns from now on. `connected` maps a campaign to its connected targets that could be released."""
        self._shown = list(islice(campaigns, MAX_CAMPAIGNS))
        self._connected = connected

    def collect(self) -> Iterable[Metric]:
        """Return the metrics for `/metrics`."""
        now_ms = wall_clock_ms()
        targets = GaugeMetricFamily(
            "manifold_campaign_targets", "Targets of an open campaign", labels=["campaign", "wave", "state"]
        )
        released = CounterMetricFamily(
            "manifold_campaign_released", "Targets released, each as often as it was", labels=["campaign"]
        )
        limit = GaugeMetricFamily(
            "manifold_campaign_rate_limit", "Targets that the rate allows in 60 s; absent: any", labels=["campaign"]
        )
        braked = GaugeMetricFamily("manifold_campaign_braked", "1 while nothing of the campaign may be sent", labels=["campaign"])
        tripped = GaugeMetricFamily(
            "manifold_campaign_tripped_rules", "Rules that tripped, and that a resume has to accept", labels=["campaign"]
        )
        here = GaugeMetricFamily("manifold_campaign_here", "Connected targets that could be released", labels=["campaign"])
        held = GaugeMetricFamily(
            "manifold_campaign_gate_held_seconds",
            "How long the gate of the open wave has been held: soak, approval, patience",
            labels=["campaign", "because"],
        )
        for name, campaign in self._shown:
            decided = campaign.decided
            for (wave, state), number in _targets(campaign):
                targets.add_metric([name, wave, state], number)
            released.add_metric([name], sum(campaign.releases.values()))
            if decided.plan is not None and decided.plan.rate is not None:
                limit.add_metric([name], decided.plan.per_minute(campaign.total(*SUCCESSES)))
            braked.add_metric([name], decided.is_braked)
            tripped.add_metric([name], len(decided.tripped))
            here.add_metric([name], self._connected.get(name, 0))
            for because, seconds in _held_seconds(campaign, now_ms):
                held.add_metric([name, because], seconds)
        return targets, released, limit, braked, tripped, here, held


CAMPAIGNS = CampaignMetrics()
REGISTRY.register(CAMPAIGNS)


def _targets(campaign: Campaign) -> Iterable[tuple[tuple[str, str], int]]:
    """Return the number of targets by wave and status, without zeros except for `_ALWAYS_SHOWN`."""
    plan = campaign.decided.plan
    counts = Counter[tuple[str, str]]()
    if plan is None:
        return counts.items()
    for index, tally in enumerate(campaign.tallies):
        wave = plan.waves[index].name if index < MAX_WAVES else OTHERS
        for status in Status:
            if tally[status] or status in _ALWAYS_SHOWN:
                counts[wave, status.value] += tally[status]
    return counts.items()


def _held_seconds(campaign: Campaign, now_ms: int) -> Iterator[tuple[str, float]]:
    """Yield why the gate of the open wave is held, and for how many seconds; nothing if it is not held, or is about to pass."""
    decided = campaign.decided
    if decided.stage is not Stage.HELD or decided.plan is None:
        return
    gate = decided.plan.waves[decided.wave].gate
    held_ms = now_ms - decided.held_ms
    soak_ms = duration_ms(gate.soak)
    if decided.held_because == "patience":
        yield "patience", held_ms / 1000
    elif held_ms < soak_ms:
        yield "soak", held_ms / 1000
    elif len(decided.passed_by) < gate.approve:
        yield "approval", (held_ms - soak_ms) / 1000
