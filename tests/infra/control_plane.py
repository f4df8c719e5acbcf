"""Kubernetes' own servers for the tests: etcd, API server, controllers, scheduler; KWOK simulates the nodes."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.servers import ROOT, free_port, start, stopping

TOOLS = ROOT / ".tools" / "cluster"
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "kubectl",
    "terraform-provider-kubectl",
)
TOKEN = "of-the-administrator"  # for a server on loopback that lives as long as its test
NODE_SILENT_S = 20
Json = dict[str, Any]


@contextmanager
def control_plane(folder: Path) -> Iterator[str]:
    """Run all of them on loopback during the block; yields the API server's address. Logs and `kubeconfig` are in the folder."""
    with ExitStack() as running:
        etcd = _etcd(folder, running)
        api = _api_server(folder, etcd, running)
        (folder / "kubeconfig").write_text(json.dumps(_kubeconfig(api)))
        shared = {"kubeconfig": folder / "kubeconfig", "leader-elect": "false", "bind-address": "127.0.0.1"}
        controllers = {
            "service-account-private-key-file": folder / "accounts.pem",
            "node-monitor-period": "1s",
            "node-monitor-grace-period": f"{NODE_SILENT_S}s",
            "pvclaimbinder-sync-period": "1s",
            "kube-api-qps": 200,
            "kube-api-burst": 400,
        }
        _serve("kube-controller-manager", {**shared, **controllers}, folder, running)
        _serve("kube-scheduler", shared, folder, running)
        kwok = {"config": ROOT / "infra" / "cluster" / "kwok.yaml", "kubeconfig": folder / "kubeconfig"}
        port = free_port()
        command = [str(TOOLS / "kwok"), *_flags(kwok), f"--server-address=127.0.0.1:{port}"]
        running.enter_context(stopping(start(command, port=port, log=folder / "kwok.log", env={"KWOK_WORKDIR": str(folder)})))
        yield api


def _etcd(folder: Path, running: ExitStack) -> str:
    port, peer_port = free_port(), free_port()
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    flags = {
        "data-dir": folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
    }
    command = [str(TOOLS / "etcd"), "--unsafe-no-fsync", *_flags(flags)]
    running.enter_context(stopping(start(command, port=port, log=folder / "etcd.log")))
    return client


def _api_server(folder: Path, etcd: str, running: ExitStack) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (folder / "accounts.pem").write_bytes(pem)
    (folder / "tokens.csv").write_text(f"{TOKEN},administrator,1,system:masters\n")
    flags = {
        "etcd-servers": etcd,
        "bind-address": "127.0.0.1",
        "token-auth-file": folder / "tokens.csv",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.0.0.0/24",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": folder / "accounts.pem",
        "service-account-signing-key-file": folder / "accounts.pem",
        # Evict pods from an unresponsive node at once instead of after five minutes.
        "default-unreachable-toleration-seconds": 1,
        # Keep the history of pods readable in etcd for the duration of the test.
        "watch-cache-sizes": "pods#0",
        "etcd-compaction-interval": "0",
    }
    return _serve("kube-apiserver", flags, folder, running)


def _serve(program: str, flags: dict[str, Any], folder: Path, running: ExitStack) -> str:
    """Start one of Kubernetes' servers and wait until it is ready; return its address."""
    port = free_port()
    address = f"https://127.0.0.1:{port}"
    flags = {**flags, "secure-port": port, "cert-dir": folder / program}
    server = start([str(TOOLS / program), *_flags(flags)], port=port, log=folder / f"{program}.log", ready=_ready(address))
    running.enter_context(stopping(server))
    return address


def _ready(address: str) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            return httpx.get(f"{address}/healthz", verify=False, headers=headers, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    return ready


def _flags(given: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in given.items()]


def _kubeconfig(api: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": api, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
