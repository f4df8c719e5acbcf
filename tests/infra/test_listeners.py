"""No plaintext listener in an environment: every port that a pod opens or a policy admits is listed here.

The evidence for TLS on a port is in its server's configuration; tests/infra/test_tls_servers.py runs the available servers.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.infra.environments import NAMES, Environment, Json, offline_copy, planned
from tests.support.servers import ROOT

pytestmark = pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not installed")

# What speaks no TLS: whose port, and why. It is in docs/guides/secure.md, too.
IN_THE_CLEAR = {("airflow-scheduler", 8793): "Airflow's server of task logs knows no TLS; it asks for a signed token"}
SPARK = range(7078, 7112)  # driver and executors: Spark's own encryption with a secret per job
CLEAR = re.compile(r"\b(?:http|mqtt|tcp|redis|amqp|ws)://[^\s\"',}]+")


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Environment]:
    root = offline_copy(tmp_path_factory.mktemp("infra"))
    return {name: planned(root, name) for name in NAMES}


@pytest.fixture(params=NAMES)
def environment(request: pytest.FixtureRequest, environments: dict[str, Environment]) -> Environment:
    return environments[request.param]


def data(environment: Environment, name: str, file: str) -> str:
    """A file of a ConfigMap."""
    (found,) = (each["data"] for each in environment.of_kind("ConfigMap") if each["metadata"]["name"] == name)
    return str(found[file])


def container(environment: Environment, name: str) -> Json:
    """The listening container of the controller with this name."""
    (made,) = (each for each in environment.of_kind("Deployment", "StatefulSet") if each["metadata"]["name"] == name)
    found: Json = made["spec"]["template"]["spec"]["containers"][0]
    return found


def variables(environment: Environment, name: str) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container(environment, name)["env"]}


def of_emqx(listener: str, *lines: str) -> Callable[[Environment], bool]:
    """Whether that block of tls.conf contains these lines and every enabled listener in it uses TLS."""

    def shown(environment: Environment) -> bool:
        text, own = data(environment, "emqx", "tls.conf"), data(environment, "emqx", "emqx.conf")
        is_read = own.index('include "manifold.conf"') < own.index('include "tls.conf"')
        block = text[text.index(f"\n{listener} {{") :].partition("\n}\n")[0]
        off = [f"listeners.{kind}.enable = false" for kind in ("tcp.default", "tcp.platform", "ws.default", "wss.default")]
        return is_read and all(line in text for line in off) and all(line in block for line in (*lines, "certfile", "keyfile"))

    return shown


def of_erlang(environment: Environment) -> bool:
    both = data(environment, "emqx", "ssl_dist.conf")
    asked = both.count("{verify, verify_peer}") == 2 and both.count("{fail_if_no_peer_cert, true}") == 1
    return asked and "cluster.proto_dist = inet_tls" in data(environment, "emqx", "tls.conf")


def says(name: str, file: str, *lines: str) -> Callable[[Environment], bool]:
    """Whether a file of a ConfigMap contains all these lines."""
    return lambda environment: {*lines} <= {line.strip() for line in data(environment, name, file).splitlines()}


def of_service(environment: Environment) -> bool:
    settings = environment.outputs["settings"]
    return bool(settings["http_certificate"] and settings["http_key"] and settings["require_tls"] == "true")


def of_postgres(environment: Environment) -> bool:
    rules = [line.split() for line in data(environment, "postgres", "pg_hba.conf").splitlines()]
    return "ssl=on" in container(environment, "postgres")["args"] and {rule[0] for rule in rules} == {"local", "hostssl"}


ASKED = ("verify = verify_peer", "fail_if_no_peer_cert = true", 'versions = ["tlsv1.3", "tlsv1.2"]')
TLS: Mapping[tuple[str, int], Callable[[Environment], bool]] = {
    ("emqx", 8883): of_emqx("listeners.ssl.default", *ASKED),
    ("emqx", 8884): of_emqx("listeners.ssl.platform", "zone = platform", *ASKED),
    ("emqx", 18084): of_emqx("dashboard.listeners", "http { bind = 0 }", "bind = 18084"),
    ("emqx", 5369): of_emqx("rpc", "protocol = ssl", "server_port = 5369"),
    ("emqx", 4370): of_erlang,
    ("redis", 6379): says("redis", "redis.conf", "port 0", "tls-port 6379", "tls-auth-clients yes"),
    ("postgres", 5432): of_postgres,
    ("rabbitmq", 5671): says("rabbitmq", "rabbitmq.conf", "listeners.tcp = none", "ssl_options.fail_if_no_peer_cert = true"),
    ("rabbitmq", 15691): says("rabbitmq", "rabbitmq.conf", "prometheus.ssl.port = 15691"),
    ("object-store", 7070): lambda environment: {"--cert", "--key"} <= {*container(environment, "object-store")["args"]},
    **dict.fromkeys(
        (("recorder", 9101), ("dispatcher", 9110), ("signals", 9105), ("campaigner", 9106), ("api", 9104)), of_service
    ),
    ("airflow-api-server", 8080): lambda environment: (
        {"AIRFLOW__API__SSL_CERT", "AIRFLOW__API__SSL_KEY"}
        <= next(each["data"].keys() for each in environment.of_kind("ConfigMap") if each["metadata"]["name"] == "airflow")
    ),
    ("prometheus", 9090): lambda environment: (
        "--web.config.file=/etc/prometheus/web.yml" in container(environment, "prometheus")["args"]
        and "tls_server_config" in data(environment, "prometheus", "web.yml")
    ),
    ("grafana", 3000): lambda environment: variables(environment, "grafana")["GF_SERVER_PROTOCOL"] == "https",
}


def opened(environment: Environment) -> Iterator[tuple[str, int]]:
    """Every port that a container declares: its controller and number."""
    for each in environment.of_kind("Deployment", "StatefulSet", "Job"):
        for one in each["spec"]["template"]["spec"]["containers"]:
            yield from ((each["metadata"]["name"], port["containerPort"]) for port in one.get("ports", []))


def test_every_port_uses_tls_or_is_listed_with_the_reason(environment: Environment) -> None:
    ports = {*opened(environment)}
    assert ports - TLS.keys() - IN_THE_CLEAR.keys() == set()
    assert [port for port in sorted(ports) if port in TLS and not TLS[port](environment)] == []


def test_every_listed_port_exists(environments: dict[str, Environment]) -> None:
    ports = {port for environment in environments.values() for port in opened(environment)}
    assert ports == TLS.keys() | IN_THE_CLEAR.keys()
    assert all(("airflow-scheduler", 8793) not in opened(environments[name]) for name in ("staging", "production"))


def test_policies_admit_no_other_port(environment: Environment) -> None:
    """A port that no container declares is not admitted either."""
    for each in environment.of_kind("NetworkPolicy"):
        labels = each["spec"]["podSelector"].get("matchLabels", {})
        named = {
            (port.get("name"), port["containerPort"])
            for made in environment.of_kind("Deployment", "StatefulSet")
            if labels and labels.items() <= made["spec"]["template"]["metadata"]["labels"].items()
            for one in made["spec"]["template"]["spec"]["containers"]
            for port in one.get("ports", [])
        }
        for rule in each["spec"].get("ingress", []):
            assert rule.get("ports"), f"{each['metadata']['name']} lets in to every port"
            for port in rule["ports"]:
                of_spark = port["port"] in SPARK and port.get("endPort", 0) in SPARK
                assert of_spark or port["port"] in {one for pair in named for one in pair}, each["metadata"]["name"]


def test_services_expose_no_other_port(environment: Environment) -> None:
    assert {port["port"] for each in environment.of_kind("Service") for port in each["spec"]["ports"]} <= {
        port for _, port in TLS
    }


def test_no_published_address_is_plaintext(environment: Environment) -> None:
    found = {
        (each["kind"], each["metadata"]["name"], address)
        for each in environment.objects
        for address in CLEAR.findall(json.dumps(each))
    }
    assert found == set()
    assert CLEAR.findall(json.dumps({key: environment.outputs[key] for key in environment.outputs if key != "files"})) == []


def test_spark_drivers_and_executors_encrypt_their_traffic(environment: Environment) -> None:
    told = dict(
        line.split(maxsplit=1) for line in environment.outputs["files"]["defaults"].splitlines() if line.startswith("spark.")
    )
    on = ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled")
    assert [told[name] for name in on] == ["true"] * 3
    assert told["spark.ui.enabled"] == "false"


def test_prometheus_scrapes_verified_https_only(environment: Environment) -> None:
    text = data(environment, "prometheus", "prometheus.yml")
    jobs = text.count("job_name:")
    assert (text.count("scheme: https\n"), text.count("ca_file: /etc/prometheus-tls/ca.crt")) == (jobs, jobs)
    assert "insecure_skip_verify" not in text
    assert "alertmanagers" not in text or "alertmanagers: [{scheme: https" in text


def test_erlang_and_health_ports_are_reachable_only_inside_their_pod(environments: dict[str, Environment]) -> None:
    rabbitmq = variables(environments["local"], "rabbitmq")
    assert rabbitmq["ERL_EPMD_ADDRESS"] == "127.0.0.1"
    assert "inet_dist_use_interface {127,0,0,1}" in rabbitmq["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    assert data(environments["local"], "airflow", "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST") == "127.0.0.1"


def test_the_security_page_lists_every_listener_and_exception() -> None:
    page = (ROOT / "docs" / "guides" / "secure.md").read_text()
    table = page.partition("## Every listener of an environment")[2].partition("\n## ")[0]
    rows = {(name, int(port)): row for name, port, row in re.findall(r"^\| `([\w-]+):(\d+)` \|(.*)\|$", table, re.MULTILINE)}
    assert rows.keys() == TLS.keys() | IN_THE_CLEAR.keys() | {("spark", SPARK[0])}
    assert {name for name, row in rows.items() if "**no**" in row} == IN_THE_CLEAR.keys()
    for test in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", table):
        assert f"def {test[1]}(" in Path(ROOT, test[0]).read_text(), test
