"""`production` on simulated nodes: placement of replicas, upgrades, and a version that fails to start."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.infra import history
from tests.infra.applied import NAMESPACE, REPLICAS, Applied
from tests.infra.cluster import NODES, Cluster, missing
from tests.infra.history import Moment
from tests.support.servers import wait_until

UPGRADED = f"-var=image=registry.example/manifold@sha256:{'1' * 64}"
BROKEN = f"-var=image=registry.example/manifold@sha256:{'e' * 64}"
EMQX = '-var=emqx={ replicas = 5, volume = "50Gi", image = "emqx/emqx:5.8.10", tls_secret = "emqx-tls" }'
LARGER = '-var=recorders={ replicas = 3, journal = "150Gi", cpu = "2", memory = "2Gi" }'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CLUSTER" not in os.environ, reason="minutes that not every run should take: make cluster"),
    pytest.mark.skipif(bool(missing()), reason=f"not there: {', '.join(missing())}; make cluster brings it"),
]


@pytest.fixture(scope="module")
def upgrade(api: Cluster, production: Applied) -> list[Moment]:
    """The pods while Manifold and EMQX are upgraded to another image."""
    before = history.now(api, NAMESPACE)
    production.apply(UPGRADED, EMQX)
    return history.since(api, NAMESPACE, before)


def over_zones(moment: Moment) -> Counter[str]:
    return Counter(NODES[pod.node] for pod in moment.values())


def is_even(counts: Counter[str], places: int) -> bool:
    return max(counts.values()) - (min(counts.values()) if len(counts) == places else 0) <= 1


def unready(api: Cluster) -> Iterator[str]:
    return (name for name, pod in history.pods(api, NAMESPACE).items() if pod.node and not pod.ready)


@pytest.mark.parametrize("app", REPLICAS)
def test_replicas_are_spread_over_zones_and_nodes(api: Cluster, production: Applied, app: str) -> None:
    (found,) = history.of(app, [history.pods(api, NAMESPACE)])
    assert history.serving(found) == REPLICAS[app]
    assert is_even(over_zones(found), 3), found
    assert is_even(Counter(pod.node for pod in found.values()), len(NODES)), found


@pytest.mark.parametrize("app", sorted(REPLICAS.keys() - {"api"}))
def test_an_upgrade_replaces_pods_one_by_one_last_first(upgrade: list[Moment], app: str) -> None:
    found = history.of(app, upgrade)
    assert history.ended(found) == [f"{app}-{number}" for number in reversed(range(REPLICAS[app]))]
    assert min(history.serving(moment) for moment in found) == REPLICAS[app] - 1


def test_an_upgrade_keeps_an_api_pod_until_its_successor_serves(upgrade: list[Moment]) -> None:
    found = history.of("api", upgrade)
    assert min(history.serving(moment) for moment in found) == REPLICAS["api"]
    assert max(sum(not pod.ending for pod in moment.values()) for moment in found) == REPLICAS["api"] + 1
    assert not set(found[0]) & set(found[-1])
    assert is_even(over_zones(found[-1]), 3), found[-1]


def test_an_upgrade_migrates_once_and_leaves_one_job(upgrade: list[Moment]) -> None:
    (before,), (after,) = (
        [name for name in moment if name.startswith("airflow-migrate-")] for moment in (upgrade[0], upgrade[-1])
    )
    assert before.rsplit("-", 1)[0] != after.rsplit("-", 1)[0]


def test_a_broken_version_takes_down_one_pod_of_each_and_no_api(api: Cluster, production: Applied) -> None:
    """After a rollback all recover but a recorder and a signals pod: their StatefulSets wait until the broken pod is deleted."""
    before = history.now(api, NAMESPACE)
    ran = production.terraform("apply", "-auto-approve", "-var=wait_for_rollout=false", BROKEN)
    assert ran.returncode == 0, ran.stderr
    wait_until(
        lambda: {"recorder-2", "signals-2", "dispatcher-5"} <= set(unready(api)),
        what="the rollout of the broken version to begin",
    )
    moments = history.since(api, NAMESPACE, before)
    for app, fewest in {"recorder": 2, "signals": 2, "dispatcher": 5, "api": 3}.items():
        assert min(history.serving(moment) for moment in history.of(app, moments)) == fewest, app
    back = production.terraform("apply", "-auto-approve", "-var=wait_for_rollout=false")
    assert back.returncode == 0, back.stderr
    wait_until(lambda: set(production.unsettled()) == {"recorder", "signals"}, what="all other controllers to recover")
    api.did("-n", NAMESPACE, "delete", "pod", "recorder-2", "signals-2", "--wait=false")
    wait_until(lambda: not production.unsettled(), what="the remaining pods to recover")


def test_volumes_grow_while_their_pods_run(api: Cluster, production: Applied) -> None:
    """A StatefulSet's claims are immutable: it is deleted without its pods and recreated around them."""
    production.apply()
    before = history.now(api, NAMESPACE)
    refused = production.terraform("apply", "-auto-approve", LARGER)
    assert "updates to statefulset spec" in refused.stderr
    for number in range(REPLICAS["recorder"]):
        larger = '{"spec": {"resources": {"requests": {"storage": "150Gi"}}}}'
        api.did("-n", NAMESPACE, "patch", "persistentvolumeclaim", f"home-recorder-{number}", "-p", larger)
    for variables in ([LARGER], []):
        api.did("-n", NAMESPACE, "delete", "statefulset", "recorder", "--cascade=orphan")
        production.apply(*variables)
    assert history.ended(history.of("recorder", history.since(api, NAMESPACE, before))) == []
