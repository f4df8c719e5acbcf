"""A Kubernetes cluster for tests: its servers are real, its nodes are simulated, and no container runs."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.infra.control_plane import PROGRAMS, TOKEN, TOOLS, control_plane
from tests.infra.environments import terraform

ZONES = ("a", "b", "c")
NODES = {f"{zone}-{number}": zone for zone in ZONES for number in (1, 2)}
STORAGE_CLASS = "replicated-ssd"
Json = dict[str, Any]


def missing() -> list[str]:
    """What `make cluster` would have to build."""
    return [name for name in PROGRAMS if not (TOOLS / name).exists()] + ([] if shutil.which("terraform") else ["terraform"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as its administrator sees it."""

    folder: Path
    client: httpx.Client

    @property
    def env(self) -> dict[str, str]:
        """The environment in which kubectl and Terraform find the cluster, and Terraform the locally built provider."""
        tools = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
        return {
            **os.environ,
            "PATH": tools,
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "TF_CLI_CONFIG_FILE": str(self.folder / "terraformrc"),
        }

    def kubectl(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl; the caller checks its exit status."""
        command = [str(TOOLS / "kubectl"), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, env=self.env)

    def did(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl, which must succeed; return its output."""
        ran = self.kubectl(*arguments, given=given)
        assert ran.returncode == 0, f"kubectl {' '.join(arguments)}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def get(self, kinds: str, *arguments: str) -> list[Json]:
        """The objects of these kinds."""
        found: list[Json] = json.loads(self.did("get", kinds, *arguments, "-o", "json"))["items"]
        return found

    def ask(self, path: str) -> Json:
        """The response of the API server to this path."""
        answer = self.client.get(path)
        answer.raise_for_status()
        found: Json = answer.json()
        return found

    def may(self, account: str, verb: str, resource: str, namespace: str) -> bool:
        """Whether a service account may do that in its namespace; `pods/exec` is the subresource `exec` of a pod."""
        kind, _, part = resource.partition("/")
        who = [f"--as=system:serviceaccount:{namespace}:{account}", *([f"--subresource={part}"] if part else [])]
        return self.kubectl("auth", "can-i", verb, kind, "-n", namespace, *who).stdout.strip() == "yes"

    def terraform(self, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Terraform against the cluster."""
        return terraform(root, *arguments, env=self.env)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster of six nodes in three zones, with volumes, for the duration of the block."""
    with control_plane(folder) as api, _client(api) as client:
        (folder / "terraformrc").write_text(
            f'provider_installation {{\n  dev_overrides {{ "gavinbunney/kubectl" = "{TOOLS}" }}\n  direct {{}}\n}}\n'
        )
        found = Cluster(folder, client)
        found.did("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": [*_nodes(), *_volumes()]}))
        found.did("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        yield found


def _client(api: str) -> httpx.Client:
    return httpx.Client(base_url=api, verify=False, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)


def _nodes() -> Iterator[Json]:
    capacity = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    for name, zone in NODES.items():
        labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone, "kubelet": "simulated"}
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"capacity": capacity, "allocatable": capacity},
        }


def _volumes() -> Iterator[Json]:
    """Disks bound to their zone, like those of a cloud: a claim gets one when its pod is scheduled."""
    yield {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }
    for zone in ZONES:
        here = {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}]}
        for number in range(16):
            spec = {
                "storageClassName": STORAGE_CLASS,
                "capacity": {"storage": "200Gi"},
                "accessModes": ["ReadWriteOncePod" if number % 2 else "ReadWriteOnce"],
                "local": {"path": f"/disks/{number}"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
            }
            metadata = {"name": f"{zone}-{number}"}
            yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}
