"""Every environment is planned; every object is valid and follows the rules; invalid variables are refused."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manifold.settings import Settings, load_settings
from tests.infra.environments import NAMES, TERRAFORM, Environment, Json, documents, offline_copy, planned, terraform
from tests.infra.seen import promtool

KUBERNETES = "1.33"
MISSING = "Terraform is not installed: see developer.hashicorp.com/terraform/install"

pytestmark = pytest.mark.skipif(shutil.which("terraform") is None, reason=MISSING)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return offline_copy(tmp_path_factory.mktemp("infra"))


@pytest.fixture(scope="module")
def environments(root: Path) -> dict[str, Environment]:
    return {name: planned(root, name) for name in NAMES}


@pytest.fixture(params=NAMES)
def environment(request: pytest.FixtureRequest, environments: dict[str, Environment]) -> Environment:
    return environments[request.param]


def containers(template: Json) -> Iterator[Json]:
    yield from template["spec"].get("initContainers", [])
    yield from template["spec"]["containers"]


def test_the_files_are_formatted() -> None:
    ran = terraform(TERRAFORM, "fmt", "-check", "-recursive", "-no-color")
    assert ran.returncode == 0, f"run: terraform fmt -recursive infra/terraform\n{ran.stdout}"


def test_the_configuration_is_valid(root: Path) -> None:
    ran = terraform(root, "validate", "-no-color")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_invalid_variables_are_refused_and_external_services_accepted(root: Path) -> None:
    ran = terraform(root, "test", "-no-color")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_object_is_valid_for_kubernetes(environment: Environment) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for each in environment.objects:
        validate(each, KUBERNETES, strict=True)
    for template in environment.templates().values():
        validate({"apiVersion": "v1", "kind": "Pod", **template}, KUBERNETES, strict=True)


def test_every_pod_is_restricted_limited_and_probed(environment: Environment) -> None:
    for name, template in environment.templates().items():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["enableServiceLinks"] is False, f"{name}: variables of Services would be taken for settings"
        for container in containers(template):
            held = container["securityContext"]
            assert (held["allowPrivilegeEscalation"], held["capabilities"]) == (False, {"drop": ["ALL"]}), name
            of_spark = name.startswith("spark-")  # its pods set their own resources and write to their working folder
            assert of_spark or "memory" in container["resources"]["limits"], name
            assert of_spark or held.get("readOnlyRootFilesystem") or name in {"StatefulSet emqx", "StatefulSet rabbitmq"}, name
        if name.split()[0] in {"Deployment", "StatefulSet"}:
            assert "livenessProbe" in spec["containers"][0], name


def test_each_image_is_pinned(environment: Environment) -> None:
    images = {
        container["image"] for made in environment.templates().values() for container in containers(made) if "image" in container
    }
    assert {image for image in images if not re.search(r":[\w.-]*\d[\w.-]*$|@sha256:|:dev$", image)} == set()


def test_only_pods_that_call_the_cluster_api_have_a_token(environment: Environment) -> None:
    accounts = {
        each["metadata"]["name"]: each.get("automountServiceAccountToken", True) for each in environment.of_kind("ServiceAccount")
    }
    assert {name for name, has_token in accounts.items() if has_token} <= {"airflow-jobs", "prometheus"}
    bound = {subject["name"] for each in environment.of_kind("RoleBinding") for subject in each["subjects"]}
    assert bound <= {"airflow-jobs", "prometheus"}
    rules = [rule for role in environment.of_kind("Role") for rule in role["rules"]]
    assert not any("*" in [*rule["verbs"], *rule["resources"]] or {"secrets", "roles"} & {*rule["resources"]} for rule in rules)
    assert environment.of_kind("ClusterRole", "ClusterRoleBinding") == []


def test_every_listening_pod_has_a_policy_and_every_replica_a_budget(environment: Environment) -> None:
    policies = [each["spec"]["podSelector"].get("matchLabels", {}) for each in environment.of_kind("NetworkPolicy")]
    assert {} in policies, "default deny"
    budgets = [each["spec"]["selector"]["matchLabels"] for each in environment.of_kind("PodDisruptionBudget")]
    for each in environment.of_kind("Deployment", "StatefulSet"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert any(policy and policy.items() <= labels.items() for policy in policies), each["metadata"]["name"]
        many = each["spec"]["replicas"] > 1
        assert not many or any(budget.items() <= labels.items() for budget in budgets), each["metadata"]["name"]
        assert not many or each["spec"]["template"]["spec"]["topologySpreadConstraints"], each["metadata"]["name"]


def test_every_service_and_policy_refers_to_an_existing_port(environment: Environment) -> None:
    pods = [
        (made["metadata"]["labels"], [port for c in containers(made) for port in c.get("ports", [])])
        for made in environment.templates().values()
    ]
    for each in environment.of_kind("Service"):
        selector = each["spec"]["selector"]
        names = {port["name"] for labels, ports in pods if selector.items() <= labels.items() for port in ports}
        assert {port.get("targetPort", port["name"]) for port in each["spec"]["ports"]} <= names, each["metadata"]["name"]
    for each in environment.of_kind("NetworkPolicy"):
        selector = each["spec"]["podSelector"].get("matchLabels", {})
        names = {port["name"] for labels, ports in pods if selector.items() <= labels.items() for port in ports}
        asked = {port["port"] for rule in each["spec"].get("ingress", []) for port in rule.get("ports", [])}
        assert {port for port in asked if isinstance(port, str)} <= names, each["metadata"]["name"]


def test_every_mount_exists(environment: Environment) -> None:
    maps = {each["metadata"]["name"]: set(each["data"]) for each in environment.of_kind("ConfigMap")}
    for name, template in environment.templates().items():
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        (made,) = [each for each in environment.objects if f"{each['kind']} {each['metadata']['name']}" == name] or [{"spec": {}}]
        claimed = {claim["metadata"]["name"] for claim in made["spec"].get("volumeClaimTemplates", [])}
        for container in containers(template):
            for mount in container["volumeMounts"]:
                assert mount["name"] in volumes.keys() | claimed, f"{name}: {mount}"
                source = volumes.get(mount["name"], {}).get("configMap")
                assert source is None or mount.get("subPath", None) in {None, *maps[source["name"]]}, f"{name}: {mount}"
            for source in container.get("envFrom", []):
                assert source["configMapRef"]["name"] in maps, name


def test_environment_variables_are_settings_and_none_is_secret(environment: Environment, tmp_path: Path) -> None:
    (given,) = (each["data"] for each in environment.of_kind("ConfigMap") if each["metadata"]["name"] == "manifold")
    others = {name: given.pop(name) for name in list(given) if not name.startswith("MANIFOLD_")}
    own_store = environment.outputs["settings"]["s3_endpoint"].startswith("https://object-store.")
    assert others == ({"SSL_CERT_FILE": given["MANIFOLD_TLS_CA"]} if own_store else {})
    names = {name.removeprefix("MANIFOLD_").lower() for name in given}
    assert names <= Settings.model_fields.keys()
    values = {name.removeprefix("MANIFOLD_").lower(): value for name, value in given.items()}
    settings = load_settings(**(values | {"http_token": "t", "home": tmp_path}))
    assert len(settings.recorders) == len(set(settings.recorders))
    assert settings.shares_subscriptions
    assert not {name for name in names if "SecretStr" in str(Settings.model_fields[name].annotation)}


def test_secrets_are_files_and_the_readme_lists_their_keys(environments: dict[str, Environment]) -> None:
    page = (TERRAFORM / "README.md").read_text().partition("## Secrets")[2].partition("## Certificates")[0]
    listed = {
        row[0]: set(re.findall(r"`([^`]+)`", row[1])) for row in re.findall(r"^\| `([\w.-]+)` \| (.*?) \|", page, re.MULTILINE)
    }
    asked: dict[str, set[str]] = {}
    by_variable = set()
    for made in environments.values():
        for template in made.templates().values():
            for volume in template["spec"]["volumes"]:
                sources = [volume, *volume.get("projected", {}).get("sources", [])]
                for secret in (source["secret"] for source in sources if "secret" in source):
                    name = secret.get("secretName", secret.get("name"))
                    asked.setdefault(name, set()).update(item["key"] for item in secret.get("items", []))
            for container in containers(template):
                for variable in container.get("env", []):
                    if "secretKeyRef" in variable.get("valueFrom", {}):
                        by_variable.add(variable["name"])
                        asked.setdefault(variable["valueFrom"]["secretKeyRef"]["name"], set()).add(
                            variable["valueFrom"]["secretKeyRef"]["key"]
                        )
    certificates = {name for name in asked if name.endswith("-tls")}  # listed in their own table
    assert {key for name in certificates for key in asked.pop(name)} == set()  # every key is mounted
    assert asked.keys() == listed.keys()
    assert {name: keys - listed[name] for name, keys in asked.items() if keys - listed[name]} == {}
    assert by_variable == {"EMQX_NODE__COOKIE", "EMQX_DASHBOARD__DEFAULT_PASSWORD", "ROOT_ACCESS_KEY", "ROOT_SECRET_KEY"}


def test_emqx_gets_the_files_of_the_project(environments: dict[str, Environment]) -> None:
    (given,) = (each["data"] for each in environments["local"].of_kind("ConfigMap") if each["metadata"]["name"] == "emqx")
    for name in ("manifold.conf", "acl.conf", "tls.conf", "ssl_dist.conf"):
        assert given[name].rstrip() == (TERRAFORM.parent / "emqx" / name).read_text().rstrip()


def test_prometheus_in_the_cluster_has_the_same_jobs_and_rules(environment: Environment, tmp_path: Path) -> None:
    (given,) = (each["data"] for each in environment.of_kind("ConfigMap") if each["metadata"]["name"] == "prometheus")
    ours = TERRAFORM.parent / "prometheus"
    assert given["manifold.yml"].rstrip() == (ours / "rules" / "manifold.yml").read_text().rstrip()
    (here,), (there,) = documents((ours / "prometheus.yml").read_text()), documents(given["prometheus.yml"])
    assert [job["job_name"] for job in there["scrape_configs"]] == [job["job_name"] for job in here["scrape_configs"]]
    if promtool() is not None:
        here_only = given["prometheus.yml"].replace("/etc/prometheus", str(tmp_path)).replace("/etc/manifold", str(tmp_path))
        # Debian's Prometheus is built without pod discovery.
        here_only = re.sub(r"kubernetes_sd_configs: .*", "static_configs: []", here_only)
        (tmp_path / "prometheus.yml").write_text(here_only)
        (tmp_path / "manifold.yml").write_text(given["manifold.yml"])
        (tmp_path / "http-token").write_text("token")
        checked = subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_replicas_and_external_services_follow_the_variables(environments: dict[str, Environment]) -> None:
    def replicas(name: str) -> dict[str, int]:
        return {
            each["metadata"]["name"]: each["spec"]["replicas"] for each in environments[name].of_kind("StatefulSet", "Deployment")
        }

    single = ("recorder", "dispatcher", "campaigner", "api", "emqx")
    assert {name: replicas("local")[name] for name in single} == dict.fromkeys(single, 1)
    assert replicas("staging").items() >= {"recorder": 2, "dispatcher": 2, "api": 2, "emqx": 3}.items()
    assert replicas("local").keys() >= {"redis", "postgres", "rabbitmq", "object-store", "prometheus", "grafana"}
    assert not replicas("production").keys() & {"redis", "postgres", "rabbitmq", "object-store"}
    assert environments["production"].outputs["settings"]["archive_url"] == "s3://example-manifold/archive"


def test_a_changed_job_has_another_name(root: Path, environments: dict[str, Environment]) -> None:
    """A Job's template is immutable: the server would refuse a change under the old name."""
    (job,) = environments["local"].of_kind("Job")
    (other,) = planned(root, "local", '-var=secrets={ airflow = "another" }').of_kind("Job")
    assert job["spec"] != other["spec"]
    assert job["metadata"]["name"] != other["metadata"]["name"]


def test_tables_of_the_readmes_match_the_files() -> None:
    spec: Any = importlib.util.spec_from_file_location("tables", TERRAFORM / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    stale = [str(folder) for folder in tables.folders() if tables.with_tables(folder) != (folder / "README.md").read_text()]
    assert stale == [], "run: python infra/terraform/tables.py"


def test_every_variable_and_output_has_a_type_and_a_description() -> None:
    for path in TERRAFORM.rglob("*.tf"):
        for kind, name, body in re.findall(
            r'^(variable|output) "(\w+)" \{\n(.*?)^\}', path.read_text(), re.MULTILINE | re.DOTALL
        ):
            assert "description" in body, f"{path}: {name}"
            assert kind == "output" or re.search(r"^  type\s+=", body, re.MULTILINE), f"{path}: {name}"
    sites = {path.read_text() for path in TERRAFORM.glob("modules/*/site.tf")}
    assert len(sites) == 1, "shared definitions must be equal in all modules"
