"""The environments as Terraform plans them offline: a built-in provider replaces that of Kubernetes."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.support.servers import ROOT

TERRAFORM = ROOT / "infra" / "terraform"
NAMES = ("local", "staging", "production")
PODS = {"Deployment", "StatefulSet", "Job"}
KEPT = """
resource "terraform_data" "this" {
  for_each = local.manifests
  input    = { yaml = each.value, wait_for_rollout = var.wait_for_rollout }
}
"""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Environment:
    """The planned result: every object and the outputs."""

    name: str
    objects: list[Json]
    outputs: Json

    def of_kind(self, *kinds: str) -> list[Json]:
        """The objects of these kinds."""
        return [found for found in self.objects if found["kind"] in kinds]

    def templates(self) -> dict[str, Json]:
        """Every pod template by kind and name of its controller; those of tasks and of Spark are files in ConfigMaps."""
        made = {f"{each['kind']} {each['metadata']['name']}": each["spec"]["template"] for each in self.of_kind(*PODS)}
        (spark,) = (each for each in self.of_kind("ConfigMap") if each["metadata"]["name"] == "spark")
        return made | {name: documents(text)[0] for name, text in spark["data"].items() if name.endswith(".yaml")}


def documents(text: str) -> list[Json]:
    """The documents of a YAML text."""
    return [found for found in YAML(typ="safe").load_all(text) if found]


def offline_copy(folder: Path) -> Path:
    """Copy the root with its inputs into `folder`, to be planned without a provider."""
    ignore = shutil.ignore_patterns(".terraform*", "*.tfstate*", "backend.tf")
    for room in ("terraform", "emqx", "prometheus", "grafana"):
        shutil.copytree(ROOT / "infra" / room, folder / room, ignore=ignore)
    root = folder / "terraform"
    (root / "providers.tf").unlink()
    (root / "modules" / "apply" / "main.tf").write_text(KEPT)
    ran = terraform(root, "init", "-backend=false", "-no-color")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return root


def terraform(root: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Terraform in that folder."""
    command = ["terraform", f"-chdir={root}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)


def planned(root: Path, name: str, *variables: str) -> Environment:
    """One planned environment with further variables (`-var=…`)."""
    plan = root / f"{name}.plan"
    given = [f"-var-file=environments/{name}/terraform.tfvars", *variables]
    ran = terraform(root, "plan", "-no-color", "-input=false", "-lock=false", *given, f"-out={plan}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = json.loads(terraform(root, "show", "-json", str(plan)).stdout)
    outputs = {key: found.get("value") for key, found in shown["planned_values"]["outputs"].items()}
    texts = outputs.pop("manifests")
    return Environment(name, [documents(text)[0] for text in texts.values()], outputs)
