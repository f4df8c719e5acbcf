"""`local` on a real API server: applied, validated, checked for drift and rights, and destroyed."""

import json
import os

import pytest

from tests.infra import history
from tests.infra.applied import NAMESPACE, Applied, applied
from tests.infra.cluster import Cluster, missing
from tests.infra.environments import Environment, offline_copy, planned

KINDS = (
    "configmaps,deployments,jobs,networkpolicies,poddisruptionbudgets,rolebindings,roles,serviceaccounts,services,statefulsets"
)
SERVERS = {"emqx", "redis", "postgres", "rabbitmq", "object-store"}
USERS = {"recorder", "dispatcher", "campaigner", "api", "signals", "airflow"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CLUSTER" not in os.environ, reason="a minute that not every run should take: make cluster"),
    pytest.mark.skipif(bool(missing()), reason=f"not there: {', '.join(missing())}; make cluster brings it"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return planned(offline_copy(tmp_path_factory.mktemp("offline")), "local")


@pytest.fixture(scope="module")
def local(api: Cluster) -> Applied:
    return applied(api, "local")


def test_every_object_exists(api: Cluster, local: Applied, environment: Environment) -> None:
    found = {(each["kind"], each["metadata"]["name"]) for each in api.get(KINDS, "-n", NAMESPACE)}
    planned = {(each["kind"], each["metadata"]["name"]) for each in environment.objects if each["kind"] != "Namespace"}
    assert planned - found == set()


def test_secrets_sh_creates_every_key_that_pods_need_exactly_once(api: Cluster, local: Applied, environment: Environment) -> None:
    secrets = {each["metadata"]["name"]: set(each["data"]) for each in api.get("secrets", "-n", NAMESPACE)}
    for name, template in environment.templates().items():
        for volume in template["spec"]["volumes"]:
            for source in [volume, *volume.get("projected", {}).get("sources", [])]:
                if "secret" in source:
                    secret = source["secret"]
                    keys = {item["key"] for item in secret.get("items", [])}
                    assert keys <= secrets[secret.get("secretName", secret.get("name"))], name
    assert local.secrets().startswith("all there")
    assert local.certificates() == ""


def test_an_expiring_certificate_is_replaced(api: Cluster, local: Applied) -> None:
    vehicle = local.certificates("--vehicle", "1M8GDM9AXKP042788")
    short = json.dumps({"stringData": {"tls.crt": vehicle.partition("-----BEGIN PRIVATE KEY-----")[0]}})  # valid for 30 days
    api.did("-n", NAMESPACE, "patch", "secret", "redis-tls", "--type=merge", "-p", short)
    assert local.certificates() == f"redis-tls: redis.{NAMESPACE}.svc\n"
    assert local.certificates() == ""


def test_the_server_admits_every_pod(api: Cluster, local: Applied, environment: Environment) -> None:
    """The server only warns about a Deployment's pods that violate the namespace's policy; so pods are submitted directly."""
    for name, template in environment.templates().items():
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": json.loads(json.dumps(template["spec"]))}
        pod["metadata"] = {"name": "tried", "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            container.setdefault("image", "example/given-by-spark:1")
        there = {volume["name"] for volume in pod["spec"]["volumes"]}
        mounts = {mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]}
        pod["spec"]["volumes"] += [{"name": volume, "emptyDir": {}} for volume in mounts - there]  # claims of a StatefulSet
        ran = api.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", given=json.dumps(pod))
        assert ran.returncode == 0, f"{name}: {ran.stderr}"
        assert "Warning" not in ran.stderr, f"{name}: {ran.stderr}"


def test_the_example_publisher_is_admitted(api: Cluster, local: Applied) -> None:
    ran = api.kubectl("-n", NAMESPACE, "create", "--dry-run=server", "-f", str(local.root / "examples" / "publisher.yaml"))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_service_accounts_have_only_the_rights_they_need(api: Cluster, local: Applied) -> None:
    assert all(api.may("airflow-jobs", verb, "pods", NAMESPACE) for verb in ("create", "get", "list", "watch", "delete"))
    assert api.may("airflow-jobs", "create", "configmaps", NAMESPACE)
    assert api.may("airflow-jobs", "get", "pods/log", NAMESPACE)
    assert api.may("prometheus", "list", "pods", NAMESPACE)
    for account in ("airflow-jobs", "prometheus", "airflow", "recorder", "dispatcher", "campaigner", "api", "spark"):
        assert not api.may(account, "get", "secrets", NAMESPACE), account
        assert not api.may(account, "create", "pods/exec", NAMESPACE), account
        assert not api.may(account, "create", "rolebindings", NAMESPACE), account
        assert not api.may(account, "list", "nodes", NAMESPACE), account
    for account in ("airflow", "recorder", "dispatcher", "campaigner", "api", "spark", "prometheus"):
        assert not api.may(account, "create", "pods", NAMESPACE), account
    elsewhere = api.kubectl(
        "auth", "can-i", "create", "pods", "-n", "default", f"--as=system:serviceaccount:{NAMESPACE}:airflow-jobs"
    )
    assert elsewhere.stdout.strip() == "no"


def test_apply_is_idempotent_and_drift_is_found_and_reverted(api: Cluster, local: Applied) -> None:
    same = local.terraform("plan", "-detailed-exitcode")
    assert same.returncode == 0, same.stdout[-4000:] + same.stderr[-2000:]
    api.did("-n", NAMESPACE, "scale", "statefulset", "recorder", "--replicas=0")
    api.did("-n", NAMESPACE, "delete", "networkpolicy", "redis")
    drift = local.terraform("plan", "-detailed-exitcode")
    assert drift.returncode == 2, drift.stdout[-4000:] + drift.stderr[-2000:]
    assert 'this["StatefulSet recorder"]' in drift.stdout
    assert 'this["NetworkPolicy redis"]' in drift.stdout
    local.apply()
    assert local.terraform("plan", "-detailed-exitcode").returncode == 0
    (recorder,) = (each for each in local.controllers("statefulsets") if each["metadata"]["name"] == "recorder")
    assert recorder["status"]["availableReplicas"] == 1


def test_destroy_removes_everything_and_apply_works_again_at_once(api: Cluster, local: Applied) -> None:
    """A namespace takes its content with it: finished pods, volume claims, Secrets."""
    assert api.get("persistentvolumeclaims", "-n", NAMESPACE)
    before = history.now(api, NAMESPACE)
    local.destroy()
    moments = history.since(api, NAMESPACE, before)
    assert moments[-1] == {}
    for moment in moments:
        if any(pod.ending for pod in moment.values() if pod.app in SERVERS):
            assert not {pod.app for pod in moment.values()} & USERS, (
                "a service that is still settling keeps its servers until it ends"
            )
    assert NAMESPACE not in {each["metadata"]["name"] for each in api.get("namespaces")}
    assert api.get("clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/part-of=manifold") == []
    assert "Bound" not in {each["status"]["phase"] for each in api.get("persistentvolumes")}
    local.secrets()
    local.apply()
