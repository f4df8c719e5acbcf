"""An environment on the tests' cluster, applied by Terraform: the unchanged root with its provider."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.infra.cluster import Cluster, Json
from tests.support.servers import ROOT

NAMESPACE = "manifold"
REPLICAS = {
    "recorder": 3,
    "signals": 3,
    "dispatcher": 6,
    "api": 3,
    "campaigner": 2,
    "emqx": 5,
}  # replicas in production where there are several
ROOMS = ("terraform", "emqx", "rabbitmq", "redis", "prometheus", "grafana")
Ran = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class Applied:
    """A copy of the root whose state belongs to one environment."""

    api: Cluster
    root: Path
    environment: str

    def terraform(self, verb: str, *arguments: str) -> Ran:
        """Run a Terraform command that takes variables; the caller checks its exit status."""
        given = [f"-var-file=environments/{self.environment}/terraform.tfvars", f"-var=kubeconfig={self.api.folder}/kubeconfig"]
        return self.api.terraform(self.root, verb, "-no-color", *given, *arguments)

    def apply(self, *arguments: str) -> None:
        """Apply; every pod must be running as applied when Terraform returns."""
        _succeeded(self.terraform("apply", "-auto-approve", *arguments))
        assert self.unsettled() == [], "apply must return only once everything runs"

    def destroy(self) -> None:
        """Destroy the environment."""
        _succeeded(self.terraform("destroy", "-auto-approve"))

    def secrets(self) -> str:
        """Run secrets.sh, which must succeed; return its output."""
        return self._says("secrets.sh")

    def certificates(self, *arguments: str) -> str:
        """Run certificates.sh, which must succeed; return its output."""
        return self._says("certificates.sh", *arguments)

    def _says(self, script: str, *arguments: str) -> str:
        command = [str(self.root / script), NAMESPACE, *arguments]
        made = subprocess.run(command, capture_output=True, text=True, env=self.api.env, timeout=120)
        assert made.returncode == 0, made.stderr
        return made.stdout

    def controllers(self, kind: str) -> list[Json]:
        """The Deployments, StatefulSets (`deployments`, `statefulsets`) or Jobs (`jobs`)."""
        group = "batch" if kind == "jobs" else "apps"
        found: list[Json] = self.api.ask(f"/apis/{group}/v1/namespaces/{NAMESPACE}/{kind}")["items"]
        return found

    def unsettled(self) -> list[str]:
        """Controllers that do not (yet) run as applied."""
        running = [each for kind in ("deployments", "statefulsets") for each in self.controllers(kind) if not _settled(each)]
        jobs = [each for each in self.controllers("jobs") if not each["status"].get("succeeded")]
        return [each["metadata"]["name"] for each in [*running, *jobs]]


def applied(api: Cluster, environment: str, *variables: str) -> Applied:
    """The running environment with its secrets."""
    infra = api.folder / environment
    for room in ROOMS:
        shutil.copytree(
            ROOT / "infra" / room, infra / room, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*", "backend.tf")
        )
    found = Applied(api, infra / "terraform", environment)
    found.secrets()
    found.certificates()
    _succeeded(api.terraform(found.root, "get", "-no-color"))
    found.apply(*variables)
    return found


def _settled(each: Json) -> bool:
    """Whether a Deployment or StatefulSet has observed its last change and all its replicas are updated and available."""
    wanted, status = each["spec"]["replicas"], each["status"]
    seen = status.get("observedGeneration") == each["metadata"]["generation"]
    return seen and all(status.get(name, 0) == wanted for name in ("replicas", "updatedReplicas", "availableReplicas"))


def _succeeded(ran: Ran) -> None:
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
