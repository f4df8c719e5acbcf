"""A Kubernetes API server of the tests' own, without nodes: it checks, keeps and answers, and nothing runs."""

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
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.infra.environments import terraform
from tests.servers import ROOT, free_port, start, stopping

TOOLS = ROOT / ".tools" / "cluster"
PROGRAMS = ("etcd", "kube-apiserver", "kubectl", "terraform-provider-kubectl")
TOKEN = "of-the-administrator"  # of a server that lives as long as its test, on loopback
Json = dict[str, Any]


def missing() -> list[str]:
    """What `make cluster` would have to build."""
    return [name for name in PROGRAMS if not (TOOLS / name).exists()] + ([] if shutil.which("terraform") else ["terraform"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server, and its administrator's kubeconfig."""

    folder: Path
    kubeconfig: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment in which kubectl and Terraform find it, and Terraform the provider that was built here."""
        tools = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
        return {
            **os.environ,
            "PATH": tools,
            "KUBECONFIG": str(self.kubeconfig),
            "TF_CLI_CONFIG_FILE": str(self.folder / "terraformrc"),
        }

    def kubectl(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl; whether it succeeded is for the caller to look at."""
        command = [str(TOOLS / "kubectl"), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, env=self.env)

    def get(self, kinds: str, *arguments: str) -> list[Json]:
        """The objects of these kinds."""
        ran = self.kubectl("get", kinds, *arguments, "-o", "json")
        assert ran.returncode == 0, ran.stderr
        found: list[Json] = json.loads(ran.stdout)["items"]
        return found

    def may(self, account: str, verb: str, resource: str, namespace: str) -> bool:
        """Whether a service account of that namespace may do that in it; `pods/exec` is the part `exec` of a pod."""
        kind, _, part = resource.partition("/")
        who = [f"--as=system:serviceaccount:{namespace}:{account}", *([f"--subresource={part}"] if part else [])]
        return self.kubectl("auth", "can-i", verb, kind, "-n", namespace, *who).stdout.strip() == "yes"

    def terraform(self, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Terraform on it."""
        return terraform(root, *arguments, env=self.env)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """An API server and its etcd, until the block ends."""
    etcd_port, peer_port, port = free_port(), free_port(), free_port()
    etcd = [str(TOOLS / "etcd"), "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"]
    etcd += ["--listen-client-urls", f"http://127.0.0.1:{etcd_port}", "--advertise-client-urls", f"http://127.0.0.1:{etcd_port}"]
    etcd += [
        "--listen-peer-urls",
        f"http://127.0.0.1:{peer_port}",
        "--initial-advertise-peer-urls",
        f"http://127.0.0.1:{peer_port}",
    ]
    etcd += ["--initial-cluster", f"default=http://127.0.0.1:{peer_port}"]
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (folder / "accounts.pem").write_bytes(pem)
    (folder / "tokens.csv").write_text(f"{TOKEN},administrator,1,system:masters\n")
    api = {
        "etcd-servers": f"http://127.0.0.1:{etcd_port}",
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "cert-dir": folder / "certificates",
        "token-auth-file": folder / "tokens.csv",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.0.0.0/24",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": folder / "accounts.pem",
        "service-account-signing-key-file": folder / "accounts.pem",
        # It would ask for accounts that a controller makes, which is not here.
        "disable-admission-plugins": "ServiceAccount",
    }
    command = [str(TOOLS / "kube-apiserver"), *(f"--{name}={value}" for name, value in api.items())]

    def ready() -> bool:
        try:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            return httpx.get(f"https://127.0.0.1:{port}/readyz", verify=False, headers=headers, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    with (
        stopping(start(etcd, port=etcd_port, log=folder / "etcd.log")),
        stopping(start(command, port=port, log=folder / "api.log", ready=ready)),
    ):
        (folder / "terraformrc").write_text(
            f'provider_installation {{\n  dev_overrides {{ "gavinbunney/kubectl" = "{TOOLS}" }}\n  direct {{}}\n}}\n'
        )
        (folder / "kubeconfig").write_text(json.dumps(_kubeconfig(port)))
        yield Cluster(folder, folder / "kubeconfig")


def _kubeconfig(port: int) -> Json:
    server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
