"""`production` while nodes are drained or fail, and under a site's quota."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.infra import history
from tests.infra.applied import NAMESPACE, REPLICAS, Applied
from tests.infra.cluster import NODES, Cluster, Json, missing
from tests.infra.control_plane import NODE_SILENT_S
from tests.support.servers import wait_until

OFF = "node.kubernetes.io/out-of-service"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CLUSTER" not in os.environ, reason="minutes that not every run should take: make cluster"),
    pytest.mark.skipif(bool(missing()), reason=f"not there: {', '.join(missing())}; make cluster brings it"),
]


def _budgets(api: Cluster) -> dict[str, int]:
    """How many pods of each service its PodDisruptionBudget allows to evict."""
    found = api.ask(f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets")["items"]
    return {each["metadata"]["name"]: each["status"]["disruptionsAllowed"] for each in found}


@contextmanager
def _cordoned(api: Cluster, *nodes: str) -> Iterator[None]:
    try:
        api.did("cordon", *nodes)
        yield
    finally:
        api.did("uncordon", *nodes)


def test_draining_a_zone_respects_budgets_and_journals_stay_in_their_zone(api: Cluster, production: Applied) -> None:
    before, journals = history.now(api, NAMESPACE), _zones_of_journals(api)
    for node in ("a-1", "a-2"):
        with _cordoned(api, node):
            api.did("drain", node, "--delete-emptydir-data", "--timeout=100s")
            assert not {pod.app for pod in history.pods(api, NAMESPACE).values() if pod.node == node}
        wait_until(lambda: not production.unsettled(), what="the evicted pods to move to other nodes")
    moments = history.since(api, NAMESPACE, before)
    for app, replicas in REPLICAS.items():
        assert min(history.serving(moment) for moment in history.of(app, moments)) >= replicas - 1, app
    assert _zones_of_journals(api) == journals


def _zones_of_journals(api: Cluster) -> dict[str, str]:
    return {name: NODES[pod.node] for name, pod in history.pods(api, NAMESPACE).items() if pod.app in {"recorder", "signals"}}


@pytest.mark.parametrize("app", REPLICAS)
def test_a_second_eviction_is_refused(api: Cluster, production: Applied, app: str) -> None:
    first, second, *_ = history.of(app, [history.pods(api, NAMESPACE)])[0]
    wait_until(lambda: _budgets(api)[app] == 1, what="the budget to allow one eviction")
    with _cordoned(api, *NODES):
        assert _evicted(api, first) == 201
        wait_until(lambda: _budgets(api)[app] == 0, what="the budget to be spent")
        assert _evicted(api, second) == 429
        assert history.serving(history.of(app, [history.pods(api, NAMESPACE)])[0]) == REPLICAS[app] - 1
    wait_until(lambda: not production.unsettled(), what="the first pod to be back")


def _evicted(api: Cluster, pod: str) -> int:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    return api.client.post(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", json=eviction).status_code


@contextmanager
def _silent(api: Cluster, node: str) -> Iterator[None]:
    """Make a node unresponsive, with nothing ending its pods; restore it afterwards."""
    try:
        api.did("label", "node", node, "kubelet-")
        yield
    finally:
        api.did("taint", "node", node, f"{OFF}-")
        api.did("label", "node", node, "kubelet=simulated")
        api.did("wait", "--for=condition=Ready", f"node/{node}", "--timeout=60s")


def test_an_unresponsive_node_keeps_its_recorder_until_it_is_confirmed_off(api: Cluster, production: Applied) -> None:
    """Deployments are rescheduled; no second recorder starts on a journal that the first may still write."""
    at_first = history.pods(api, NAMESPACE)
    node = at_first["recorder-0"].node
    stateful = {each["metadata"]["name"] for each in production.controllers("statefulsets")}
    kept = {pod.app for pod in at_first.values() if pod.node == node} & stateful
    before = history.now(api, NAMESPACE)
    with _silent(api, node):
        wait_until(
            lambda: history.pods(api, NAMESPACE)["recorder-0"].ending,
            within_s=NODE_SILENT_S + 60,
            what="the message to be given up",
        )
        wait_until(lambda: set(production.unsettled()) == kept, what="Deployments to move to other nodes")
        given_up = history.of("recorder", history.since(api, NAMESPACE, before))
        assert {moment["recorder-0"].node for moment in given_up} == {node}
        api.did("taint", "node", node, f"{OFF}=:NoExecute")
        wait_until(lambda: not production.unsettled(), within_s=120, what="all pods to move to other nodes")
        recorder = history.pods(api, NAMESPACE)["recorder-0"]
        assert recorder.node != node
        assert NODES[recorder.node] == NODES[node]


def _pod(name: str, **of_container: object) -> Json:
    """A pod that the namespace admits, before a test changes it."""
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "it", "image": "example/it:1", "securityContext": secure, **of_container}
    spec = {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def test_pods_over_quota_or_below_restricted_are_refused_and_ours_are_not(api: Cluster, production: Applied) -> None:
    """Every container of ours declares its resources, so a site may put a quota on the namespace."""
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
            'violates PodSecurity "restricted': _pod(
                "root", resources=little, securityContext={"allowPrivilegeEscalation": True}
            ),
        }.items():
            ran = api.kubectl("create", "-f", "-", given=json.dumps(pod))
            assert ran.returncode != 0
            assert refusal in ran.stderr
        api.did("-n", NAMESPACE, "rollout", "restart", "deployment,statefulset")
        wait_until(lambda: not production.unsettled(), within_s=120, what="all clients to reconnect")
    finally:
        api.did("-n", NAMESPACE, "delete", "resourcequota", "site")
