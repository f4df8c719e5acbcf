"""Certificates of infra/terraform/certificates.sh: issuer, subject, expiry, and no key on a command line."""

import json
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from manifold.contracts.rights import LISTENER
from manifold.settings import Settings
from tests.infra.environments import TERRAFORM, Environment, offline_copy, planned
from tests.infra.made import NAMESPACE, Made, made_up

SCRIPT = "certificates.sh"
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All certificates, for external clients with two host names."""
    made = made_up(tmp_path_factory.mktemp("certificates") / "kept")
    ran = made.run(SCRIPT, "cars.example", "203.0.113.7")
    assert ran.returncode == 0, ran.stderr
    return made


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return planned(offline_copy(tmp_path_factory.mktemp("infra")), "local")


def certificate(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def name_of(found: x509.Certificate) -> str:
    return str(found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def hosts_of(found: x509.Certificate) -> set[str]:
    return {*found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)}


def uses_of(found: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return {*found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value}


def leaves(made: Made) -> Iterator[tuple[str, dict[str, str]]]:
    yield from ((name, keys) for name, keys in made.secrets().items() if name.endswith("-tls"))


def test_every_secret_that_terraform_names_is_created_and_no_other(made: Made) -> None:
    named = re.findall(r'optional\(string, "([\w-]+-tls)"\)', (TERRAFORM / "variables.tf").read_text())
    assert {name for name, _ in leaves(made)} == {*named}
    assert {"ca", "vehicle-ca"} | {*named} == made.secrets().keys()
    page = (TERRAFORM / "README.md").read_text().partition("## Certificates")[2].partition("## Rights")[0]
    assert {*re.findall(r"`([\w-]+-tls)`", page)} == {*named}


def test_each_certificate_matches_its_ca_and_key(made: Made, tmp_path: Path) -> None:
    for name, keys in leaves(made):
        authority = made.secret("vehicle-ca" if name == "emqx-vehicles-tls" else "ca")["tls.crt"]
        assert keys["ca.crt"] == authority, name
        found = certificate(keys["tls.crt"])
        found.verify_directly_issued_by(certificate(authority))
        assert timedelta(days=89) < found.not_valid_after_utc - datetime.now(UTC) < timedelta(days=90), name
        folder = made.mount(name, tmp_path / name)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "tls.crt", folder / "tls.key")


def test_services_have_client_certificates_and_servers_have_none(made: Made) -> None:
    both = {
        name: name_of(certificate(keys["tls.crt"]))
        for name, keys in leaves(made)
        if CLIENT in uses_of(certificate(keys["tls.crt"]))
    }
    services = {f"{name}-tls": f"sdv-{name}" for name in ("recorder", "dispatcher", "signals", "api", "airflow")} | {
        "campaigner-tls": "sdv-campaigns"
    }
    assert both == services | {"emqx-tls": "emqx.manifold.svc"}  # its nodes are clients of each other
    assert all(SERVER in uses_of(certificate(keys["tls.crt"])) for _, keys in leaves(made))


def test_the_broker_admits_each_service_and_gives_rights_to_its_name(made: Made, environment: Environment) -> None:
    """A service's user name in the settings is its certificate's name, by which acl.conf goes."""
    settings = Settings()
    users = {
        "recorder": settings.mqtt_username_recorder,
        "dispatcher": settings.mqtt_username_dispatcher,
        "campaigner": settings.mqtt_username_campaigns,
        "api": settings.mqtt_username_api,
    }
    assert {name: name_of(certificate(made.secret(f"{name}-tls")["tls.crt"])) for name in users} == users
    named = re.findall(r'^\{allow, \{username, "([\w-]+)"\}', (TERRAFORM.parent / "emqx" / "acl.conf").read_text(), re.MULTILINE)
    assert {*named} == {*users.values(), LISTENER}
    (policy,) = (each for each in environment.of_kind("NetworkPolicy") if each["metadata"]["name"] == "emqx")
    (rule,) = (each for each in policy["spec"]["ingress"] if {"port": "platform"} in each["ports"])
    assert {*rule["from"][0]["podSelector"]["matchExpressions"][0]["values"]} == users.keys()


def test_every_published_address_is_in_its_server_certificate(made: Made, environment: Environment) -> None:
    hosts = {host for name, keys in leaves(made) for host in hosts_of(certificate(keys["tls.crt"]))}
    texts = json.dumps([environment.objects, environment.outputs]) + json.dumps(made_up_addresses(made))
    asked = {
        urlsplit(url).hostname or ""
        for url in re.findall(r"\b(?:https|mqtts|rediss|amqps|postgresql\+psycopg)://[^\s\"'\\]+", texts)
    }
    asked |= set(re.findall(r"server_name: ([\w.-]+)", texts))
    ours = {host for host in asked if host.endswith(f".{NAMESPACE}.svc")}
    assert len(ours) > 8
    assert {host for host in ours if host not in hosts and f"*.{host.partition('.')[2]}" not in hosts} == set()


def made_up_addresses(made: Made) -> list[dict[str, str]]:
    ran = made.run("secrets.sh")
    assert ran.returncode == 0, ran.stderr
    return [made.secret("manifold"), made.secret("airflow")]


def test_an_emqx_node_is_named_as_erlang_resolves_it(made: Made, environment: Environment) -> None:
    (emqx,) = (each for each in environment.of_kind("StatefulSet") if each["metadata"]["name"] == "emqx")
    variables = {each["name"]: each.get("value", "") for each in emqx["spec"]["template"]["spec"]["containers"][0]["env"]}
    host = variables["EMQX_NODE__NAME"].partition("@")[2].replace("$(POD_NAME)", "emqx-0")
    assert host in hosts_of(certificate(made.secret("emqx-tls")["tls.crt"]))  # Erlang accepts no wildcard


def test_no_key_appears_on_a_command_line(made: Made) -> None:
    lines = {line for _, keys in leaves(made) for line in keys["tls.key"].splitlines() if "PRIVATE KEY" not in line}
    assert len(lines) > 13
    assert not any(line in made.called() for line in lines)


def test_valid_certificates_are_kept_and_expiring_ones_renewed(made: Made) -> None:
    before = {name: keys["tls.crt"] for name, keys in made.secrets().items() if "tls.crt" in keys}
    assert made.run(SCRIPT).stdout == ""
    old = made.run(SCRIPT, "--client", "sdv-pub-old").stdout  # valid for 30 days, so it is renewed
    end = "-----END CERTIFICATE-----\n"
    made.keep("redis-tls", {"tls.crt": old.partition(end)[0] + end})
    assert made.run(SCRIPT).stdout == "redis-tls: redis.manifold.svc\n"
    after = {name: keys["tls.crt"] for name, keys in made.secrets().items() if "tls.crt" in keys}
    assert {name for name in before if before[name] != after[name]} == {"redis-tls"}


def ending_soon(made: Made, secret: str, authority: str) -> None:
    """Replace the certificate in the Secret with one that expires in ten days."""
    now, by = certificate(made.secret(secret)["tls.crt"]), made.secret(authority)
    names = now.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    start, end = now.not_valid_before_utc, datetime.now(UTC) + timedelta(days=10)
    builder = x509.CertificateBuilder(certificate(by["tls.crt"]).subject, now.subject, now.public_key(), 1, start, end)
    key = load_pem_private_key(by["tls.key"].encode(), None)
    old = builder.add_extension(names, critical=False).sign(key, SHA256())  # type: ignore[arg-type]  # of a signing type
    made.keep(secret, {"tls.crt": old.public_bytes(Encoding.PEM).decode()})


def test_a_run_without_external_names_keeps_external_access(made: Made) -> None:
    """Like the weekly run, which finds the certificate due for renewal two months later."""
    ending_soon(made, "emqx-vehicles-tls", "vehicle-ca")
    before = hosts_of(certificate(made.secret("emqx-vehicles-tls")["tls.crt"]))
    assert made.run(SCRIPT).stdout == "emqx-vehicles-tls: emqx-vehicles.manifold.svc\n"
    found = certificate(made.secret("emqx-vehicles-tls")["tls.crt"])
    assert hosts_of(found) == before >= {"cars.example"}
    assert found.not_valid_after_utc - datetime.now(UTC) > timedelta(days=89)


def test_a_new_external_name_is_added_to_server_certificates(made: Made) -> None:
    said = made.run(SCRIPT, "cars.example", "more.example", "203.0.113.7").stdout
    assert said.split()[::2] == ["emqx-vehicles-tls:", "rabbitmq-tls:"]
    assert hosts_of(certificate(made.secret("rabbitmq-tls")["tls.crt"])) >= {
        "cars.example",
        "more.example",
        "rabbitmq.manifold.svc",
    }
    assert made.run(SCRIPT, "more.example").stdout == ""


def test_concurrent_first_runs_keep_one_ca(made: Made) -> None:
    """Each looked for a CA before the other created it."""
    before = made.secrets()
    for authority in ("ca", "vehicle-ca"):
        (made.folder / f"{authority}.unseen").touch()
        assert made.run(SCRIPT).returncode != 0
    assert made.secrets() == before


@pytest.mark.slow
def test_a_rotated_ca_is_trusted_until_its_last_certificate_has_expired(made: Made, tmp_path: Path) -> None:
    new, made = made.secret("ca"), made_up(tmp_path / "kept", SCRIPT)
    before = {name: keys["tls.crt"] for name, keys in leaves(made)}
    of_services = before.keys() - {"emqx-vehicles-tls"}
    both = made.secret("ca")["tls.crt"] + new["tls.crt"]

    made.keep("ca", {"ca.crt": both})
    assert {*made.run(SCRIPT).stdout.splitlines()} == {f"{name}: whom it believes" for name in of_services}
    assert {name: keys["tls.crt"] for name, keys in leaves(made)} == before
    assert {made.secret(name)["ca.crt"] for name in of_services} == {both}

    made.keep("ca", new | {"ca.crt": both})
    assert len(made.run(SCRIPT).stdout.splitlines()) == len(of_services)
    for name in of_services:
        certificate(made.secret(name)["tls.crt"]).verify_directly_issued_by(certificate(new["tls.crt"]))
        assert made.secret(name)["ca.crt"] == both

    made.keep("ca", new)
    assert {*made.run(SCRIPT).stdout.splitlines()} == {f"{name}: whom it believes" for name in of_services}
    assert made.run(SCRIPT).stdout == ""


def test_an_invalid_name_enters_no_certificate(made: Made) -> None:
    ran = made.run(SCRIPT, "--vehicel", "V1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("usage: ")


def test_ca_secrets_are_in_a_namespace_without_pods(made: Made) -> None:
    """A right to create pods in a namespace is a right to mount its Secrets."""
    kept = (made.folder / "namespaces").read_text().split()
    assert {each for each in kept if not each.startswith(f"{NAMESPACE}/")} == {f"{NAMESPACE}-ca/ca", f"{NAMESPACE}-ca/vehicle-ca"}


def test_an_unreachable_cluster_creates_no_new_ca(made: Made) -> None:
    before = made.secrets()
    (made.folder / "away").touch()
    try:
        assert made.run(SCRIPT).returncode != 0
        assert made.run(SCRIPT, "--vehicle", "V1").returncode != 0
    finally:
        (made.folder / "away").unlink()
    assert made.secrets() == before


@pytest.mark.parametrize(
    ("kind", "name", "authority"),
    [("--vehicle", "1M8GDM9AXKP042788", "vehicle-ca"), ("--client", "sdv-pub-a", "ca"), ("--client", "sdv-campaigns", "ca")],
)
def test_an_external_certificate_is_a_client_certificate_of_its_ca(made: Made, kind: str, name: str, authority: str) -> None:
    first, second = x509.load_pem_x509_certificates(made.run(SCRIPT, kind, name).stdout.encode())
    assert (name_of(first), uses_of(first)) == (name, {CLIENT})
    assert second == certificate(made.secret(authority)["tls.crt"])
    first.verify_directly_issued_by(second)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("--vehicle", "sdv-recorder"),
        ("--client", "sdv-recorder"),
        ("--client", "sdv-pub-"),
        ("--vehicle", "sdv-campaigns"),
        ("--client", "sdv-campaigns-2"),
        ("--vehicle", "a/b"),
        ("--vehicle", ""),
    ],
)
def test_an_external_name_cannot_be_a_service(made: Made, kind: str, name: str) -> None:
    ran = made.run(SCRIPT, kind, name)
    assert ran.returncode != 0
    assert "CERTIFICATE" not in ran.stdout


def test_external_names_are_in_the_certificates_that_clients_see(made: Made) -> None:
    for name in ("emqx-vehicles-tls", "rabbitmq-tls"):
        found = certificate(made.secret(name)["tls.crt"])
        of = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert "cars.example" in hosts_of(found)
        assert "203.0.113.7" in {str(address) for address in of.get_values_for_type(x509.IPAddress)}
    assert "cars.example" not in hosts_of(certificate(made.secret("redis-tls")["tls.crt"]))
