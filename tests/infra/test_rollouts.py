"""`production` on simulated nodes: placed, upgraded, stopped by a bad version, drained, and with a node that falls silent."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.infra import history
from tests.infra.applied import NAMESPACE, Applied, applied
from tests.infra.cluster import NODES, Cluster, Json, cluster, missing
from tests.infra.control_plane import NODE_SILENT_S
from tests.infra.history import Moment
from tests.servers import wait_until

REPLICAS = {"recorder": 3, "signals": 3, "dispatcher": 6, "api": 3, "emqx": 5}
STATEFUL = ("recorder", "signals", "dispatcher", "emqx")
UPGRADED = f"-var=image=registry.example/manifold@sha256:{'1' * 64}"
BROKEN = f"-var=image=registry.example/manifold@sha256:{'e' * 64}"
EMQX_UPGRADED = '-var=emqx={ replicas = 5, image = "emqx/emqx:5.8.10", service_type = "LoadBalancer", tls_secret = "emqx-tls" }'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CLUSTER" not in os.environ, reason="minutes that not every run should take: make cluster"),
    pytest.mark.skipif(bool(missing()), reason=f"not there: {', '.join(missing())}; make cluster brings it"),
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def production(api: Cluster) -> Applied:
    return applied(api, "production")


@pytest.fixture(scope="module")
def upgrade(api: Cluster, production: Applied) -> list[Moment]:
    """What became of the pods while Manifold and EMQX got another image."""
    before = history.now(api, NAMESPACE)
    production.apply(UPGRADED, EMQX_UPGRADED)
    return history.since(api, NAMESPACE, before)


def over_zones(moment: Moment) -> Counter[str]:
    return Counter(NODES[pod.node] for pod in moment.values())


def is_even(counts: Counter[str], places: int) -> bool:
    return max(counts.values()) - (min(counts.values()) if len(counts) == places else 0) <= 1


@pytest.mark.parametrize("app", REPLICAS)
def test_replicas_are_spread_over_zones_and_nodes(api: Cluster, production: Applied, app: str) -> None:
    (found,) = history.of(app, [history.pods(api, NAMESPACE)])
    assert history.serving(found) == REPLICAS[app]
    assert is_even(over_zones(found), 3), found
    assert is_even(Counter(pod.node for pod in found.values()), len(NODES)), found


@pytest.mark.parametrize("app", STATEFUL)
def test_an_upgrade_replaces_one_after_the_other_the_last_first(upgrade: list[Moment], app: str) -> None:
    found = history.of(app, upgrade)
    assert history.ended(found) == [f"{app}-{number}" for number in reversed(range(REPLICAS[app]))]
    assert min(history.serving(moment) for moment in found) == REPLICAS[app] - 1


def test_an_upgrade_takes_no_api_away_before_its_successor_serves(upgrade: list[Moment]) -> None:
    found = history.of("api", upgrade)
    assert min(history.serving(moment) for moment in found) == REPLICAS["api"]
    assert max(sum(not pod.ending for pod in moment.values()) for moment in found) == REPLICAS["api"] + 1
    assert not set(found[0]) & set(found[-1])
    assert is_even(over_zones(found[-1]), 3), found[-1]


def test_an_upgrade_migrates_once_more_and_leaves_one_job(production: Applied, upgrade: list[Moment]) -> None:
    assert sum(name.startswith("airflow-migrate-") for name in upgrade[0]) == 1
    (job,) = production.controllers("jobs")
    assert job["status"]["succeeded"] == 1
    assert not any(name.startswith(job["metadata"]["name"]) for name in upgrade[0])


def test_a_version_that_does_not_start_takes_one_of_each_and_no_api(api: Cluster, production: Applied) -> None:
    """Rolled back, all comes again but a recorder and a signals door, whose StatefulSets wait for the broken pod: delete it."""
    before = history.now(api, NAMESPACE)
    ran = production.terraform("apply", "-auto-approve", "-var=wait_for_rollout=false", BROKEN)
    assert ran.returncode == 0, ran.stderr
    wait_until(
        lambda: {"recorder-2", "signals-2", "dispatcher-5"} <= set(_unready(api)), what="the broken version to be begun with"
    )
    moments = history.since(api, NAMESPACE, before)
    for app, fewest in {"recorder": 2, "signals": 2, "dispatcher": 5, "api": 3}.items():
        assert min(history.serving(moment) for moment in history.of(app, moments)) == fewest, app
    back = production.terraform("apply", "-auto-approve", "-var=wait_for_rollout=false")
    assert back.returncode == 0, back.stderr
    wait_until(lambda: set(production.unsettled()) == {"recorder", "signals"}, what="all but these to be as before")
    api.did("-n", NAMESPACE, "delete", "pod", "recorder-2", "signals-2")
    wait_until(lambda: not production.unsettled(), what="these, too")


def _unready(api: Cluster) -> Iterator[str]:
    return (name for name, pod in history.pods(api, NAMESPACE).items() if pod.node and not pod.ready)


def _budgets(api: Cluster) -> dict[str, int]:
    """How many pods of each service its PodDisruptionBudget lets go."""
    found = api.ask(f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets")["items"]
    return {each["metadata"]["name"]: each["status"]["disruptionsAllowed"] for each in found}


@contextmanager
def _cordoned(api: Cluster, *nodes: str) -> Iterator[None]:
    try:
        api.did("cordon", *nodes)
        yield
    finally:
        api.did("uncordon", *nodes)


def test_a_zone_is_drained_within_the_budgets_and_journals_stay_in_theirs(api: Cluster, production: Applied) -> None:
    before, journals = history.now(api, NAMESPACE), _zones_of_journals(api)
    for node in ("a-1", "a-2"):
        with _cordoned(api, node):
            api.did("drain", node, "--delete-emptydir-data", "--timeout=100s")
            assert not {pod.app for pod in history.pods(api, NAMESPACE).values() if pod.node == node}
        wait_until(lambda: not production.unsettled(), what="what was driven away to be elsewhere")
    moments = history.since(api, NAMESPACE, before)
    for app, replicas in REPLICAS.items():
        assert min(history.serving(moment) for moment in history.of(app, moments)) >= replicas - 1, app
    assert _zones_of_journals(api) == journals


def _zones_of_journals(api: Cluster) -> dict[str, str]:
    return {name: NODES[pod.node] for name, pod in history.pods(api, NAMESPACE).items() if pod.app in {"recorder", "signals"}}


@pytest.mark.parametrize("app", REPLICAS)
def test_who_would_take_a_second_one_away_is_refused(api: Cluster, production: Applied, app: str) -> None:
    first, second, *_ = history.of(app, [history.pods(api, NAMESPACE)])[0]
    wait_until(lambda: _budgets(api)[app] == 1, what="the budget to know that all is well")
    with _cordoned(api, *NODES):
        assert _evicted(api, first) == 201
        wait_until(lambda: _budgets(api)[app] == 0, what="the budget to be spent")
        assert _evicted(api, second) == 429
        assert history.serving(history.of(app, [history.pods(api, NAMESPACE)])[0]) == REPLICAS[app] - 1
    wait_until(lambda: not production.unsettled(), what="the first to be back")


def _evicted(api: Cluster, pod: str) -> int:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    return api.client.post(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", json=eviction).status_code


def test_a_node_that_falls_silent_loses_its_api_and_keeps_its_recorder_until_it_is_known_to_be_off(
    api: Cluster, production: Applied
) -> None:
    """Nobody starts a second recorder on a journal while the first may still write it."""
    silent = history.pods(api, NAMESPACE)["recorder-0"].node
    there = {name: pod for name, pod in history.pods(api, NAMESPACE).items() if pod.node == silent}
    before = history.now(api, NAMESPACE)
    api.did("label", "node", silent, "kubelet-")
    wait_until(
        lambda: all(history.pods(api, NAMESPACE)[name].ending for name in there),
        within_s=NODE_SILENT_S + 60,
        what="its pods to be given up",
    )
    waiting = {each for each in STATEFUL if any(pod.app == each for pod in there.values())}
    wait_until(lambda: waiting >= set(production.unsettled()), what="Deployments to be elsewhere")
    recorders = history.of("recorder", history.since(api, NAMESPACE, before))
    assert {moment["recorder-0"].node for moment in recorders} == {silent}
    api.did("taint", "node", silent, "node.kubernetes.io/out-of-service=off:NoExecute")
    wait_until(lambda: not production.unsettled(), within_s=120, what="all to be elsewhere")
    assert history.pods(api, NAMESPACE)["recorder-0"].node not in {silent, ""}
    api.did("taint", "node", silent, "node.kubernetes.io/out-of-service-")
    api.did("label", "node", silent, "kubelet=simulated")
    api.did("wait", "--for=condition=Ready", f"node/{silent}", "--timeout=60s")


def _pod(name: str, **of_container: object) -> Json:
    """A pod that the namespace lets in, but for what a test changes."""
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "it", "image": "example/it:1", "securityContext": secure, **of_container}
    spec = {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def test_pods_beyond_a_quota_or_below_restricted_are_refused_and_ours_are_not(api: Cluster, production: Applied) -> None:
    """Every container of ours says what it needs, so that a site may put a quota on the namespace."""
    hard = {"requests.cpu": "90", "requests.memory": "350Gi", "limits.memory": "350Gi"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "site", "namespace": NAMESPACE},
        "spec": {"hard": hard},
    }
    api.did("create", "-f", "-", given=json.dumps(quota))
    wait_until(lambda: api.get("resourcequota", "-n", NAMESPACE)[0]["status"].get("used"), what="the quota to be counted")
    try:
        little = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
        vast = {"requests": {"cpu": "90", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
        for refusal, pod in {
            "must specify": _pod("silent"),
            "exceeded quota": _pod("vast", resources=vast),
            'violates PodSecurity "restricted': _pod("root", resources=little, securityContext={"privileged": True}),
        }.items():
            ran = api.kubectl("create", "-f", "-", given=json.dumps(pod))
            assert ran.returncode != 0
            assert refusal in ran.stderr
        api.did("-n", NAMESPACE, "rollout", "restart", "deployment", "statefulset")
        wait_until(lambda: not production.unsettled(), within_s=120, what="all to be let in again")
    finally:
        api.did("-n", NAMESPACE, "delete", "resourcequota", "site")
