"""`local` on a real API server: applied, checked by it, seen to drift, asked for rights, and taken away."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.cluster import Cluster, cluster, missing
from tests.infra.environments import Environment, offline_copy, planned
from tests.servers import ROOT

NAMESPACE = "manifold"
KINDS = (
    "configmaps,deployments,jobs,networkpolicies,poddisruptionbudgets,rolebindings,roles,serviceaccounts,services,statefulsets"
)
VARIABLES = ("-var-file=environments/local/terraform.tfvars", "-var=wait_for_rollout=false")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CLUSTER" not in os.environ, reason="a minute that not every run should take: make cluster"),
    pytest.mark.skipif(bool(missing()), reason=f"not there: {', '.join(missing())}; make cluster brings it"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return planned(offline_copy(tmp_path_factory.mktemp("offline")), "local")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def root(api: Cluster) -> Path:
    """The root as it is, applied."""
    for room in ("terraform", "emqx", "rabbitmq", "redis", "prometheus", "grafana"):
        shutil.copytree(ROOT / "infra" / room, api.folder / "infra" / room, ignore=shutil.ignore_patterns(".terraform*"))
    root = api.folder / "infra" / "terraform"
    for script in ("secrets.sh", "certificates.sh"):
        made = subprocess.run([root / script, NAMESPACE], capture_output=True, text=True, env=api.env, timeout=120)
        assert made.returncode == 0, made.stderr
    assert api.terraform(root, "get", "-no-color").returncode == 0
    _apply(api, root)
    return root


def _variables(api: Cluster) -> list[str]:
    return [*VARIABLES, f"-var=kubeconfig={api.kubeconfig}"]


def _apply(api: Cluster, root: Path) -> None:
    ran = api.terraform(root, "apply", "-no-color", "-auto-approve", *_variables(api))
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]


def test_every_object_is_there(api: Cluster, root: Path, environment: Environment) -> None:
    found = {(each["kind"], each["metadata"]["name"]) for each in api.get(KINDS, "-n", NAMESPACE)}
    planned = {(each["kind"], each["metadata"]["name"]) for each in environment.objects if each["kind"] != "Namespace"}
    assert planned - found == set()


def test_secrets_has_every_key_that_pods_ask_for_and_makes_none_twice(api: Cluster, root: Path, environment: Environment) -> None:
    secrets = {each["metadata"]["name"]: set(each["data"]) for each in api.get("secrets", "-n", NAMESPACE)}
    for name, template in environment.templates().items():
        for volume in template["spec"]["volumes"]:
            for source in [volume, *volume.get("projected", {}).get("sources", [])]:
                if "secret" in source:
                    secret = source["secret"]
                    keys = {item["key"] for item in secret.get("items", [])}
                    assert keys <= secrets[secret.get("secretName", secret.get("name"))], name
    again = subprocess.run([root / "secrets.sh", NAMESPACE], capture_output=True, text=True, env=api.env, timeout=120)
    assert again.stdout.startswith("all there")
    certificates = subprocess.run([root / "certificates.sh", NAMESPACE], capture_output=True, text=True, env=api.env, timeout=120)
    assert (certificates.returncode, certificates.stdout) == (0, "")


def test_a_certificate_that_ends_soon_is_put_in_the_place_of_the_old_one(api: Cluster, root: Path) -> None:
    def certificates(*arguments: str) -> str:
        command = [str(root / "certificates.sh"), NAMESPACE, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, env=api.env, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    vehicle = certificates("--vehicle", "1M8GDM9AXKP042788")
    short = json.dumps({"stringData": {"tls.crt": vehicle.partition("-----BEGIN PRIVATE KEY-----")[0]}})  # of 30 days
    assert api.kubectl("-n", NAMESPACE, "patch", "secret", "redis-tls", "--type=merge", "-p", short).returncode == 0
    assert certificates() == f"redis-tls: redis.{NAMESPACE}.svc\n"
    assert certificates() == ""


def test_every_pod_is_let_in_by_the_server(api: Cluster, root: Path, environment: Environment) -> None:
    """Of a Deployment the server only warns where its pods break the namespace's rules: here they are offered themselves."""
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


def test_the_example_of_a_publisher_is_let_in(api: Cluster, root: Path) -> None:
    ran = api.kubectl("-n", NAMESPACE, "create", "--dry-run=server", "-f", str(root / "examples" / "publisher.yaml"))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_rights_are_those_that_are_needed(api: Cluster, root: Path) -> None:
    assert all(api.may("airflow-jobs", verb, "pods", NAMESPACE) for verb in ("create", "get", "list", "watch", "delete"))
    assert api.may("airflow-jobs", "create", "configmaps", NAMESPACE)
    assert api.may("airflow-jobs", "get", "pods/log", NAMESPACE)
    assert api.may("prometheus", "list", "pods", NAMESPACE)
    for account in ("airflow-jobs", "prometheus", "airflow", "recorder", "dispatcher", "api", "spark"):
        assert not api.may(account, "get", "secrets", NAMESPACE), account
        assert not api.may(account, "create", "pods/exec", NAMESPACE), account
        assert not api.may(account, "create", "rolebindings", NAMESPACE), account
        assert not api.may(account, "list", "nodes", NAMESPACE), account
    for account in ("airflow", "recorder", "dispatcher", "api", "spark", "prometheus"):
        assert not api.may(account, "create", "pods", NAMESPACE), account
    elsewhere = api.kubectl(
        "auth", "can-i", "create", "pods", "-n", "default", f"--as=system:serviceaccount:{NAMESPACE}:airflow-jobs"
    )
    assert elsewhere.stdout.strip() == "no"


def test_nothing_differs_after_apply_and_what_somebody_changed_is_seen_and_put_back(api: Cluster, root: Path) -> None:
    def plan() -> subprocess.CompletedProcess[str]:
        return api.terraform(root, "plan", "-no-color", "-detailed-exitcode", *_variables(api))

    same = plan()
    assert same.returncode == 0, same.stdout[-4000:] + same.stderr[-2000:]
    scaled = api.kubectl("-n", NAMESPACE, "scale", "statefulset", "recorder", "--replicas=0")
    assert scaled.returncode == 0, scaled.stderr
    gone = api.kubectl("-n", NAMESPACE, "delete", "networkpolicy", "redis")
    assert gone.returncode == 0, gone.stderr
    drift = plan()
    assert drift.returncode == 2, drift.stdout[-4000:] + drift.stderr[-2000:]
    assert 'this["StatefulSet recorder"]' in drift.stdout
    assert 'this["NetworkPolicy redis"]' in drift.stdout
    _apply(api, root)
    assert plan().returncode == 0
    (recorder,) = (each for each in api.get("statefulsets", "-n", NAMESPACE) if each["metadata"]["name"] == "recorder")
    assert recorder["spec"]["replicas"] == 1


def test_destroy_leaves_nothing(api: Cluster, root: Path) -> None:
    ran = api.terraform(root, "destroy", "-no-color", "-auto-approve", *_variables(api))
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert api.get(KINDS, "-n", NAMESPACE, "-l", "app.kubernetes.io/part-of=manifold") == []
    # Without the controller that empties it, a namespace that was deleted waits for its end.
    left = [each["metadata"].get("deletionTimestamp") for each in api.get("namespaces") if each["metadata"]["name"] == NAMESPACE]
    assert None not in left
