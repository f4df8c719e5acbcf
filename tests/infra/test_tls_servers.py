"""The servers of an environment as its manifests configure them, and services that connect with the generated secrets."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy.engine import make_url

from manifold.contracts.tls import TlsFiles
from manifold.messaging.mqtt import Mqtt
from manifold.queues import Loader, Policy
from manifold.runtime.redis import connect
from manifold.runtime.tls import client_context
from manifold.sandbox.platform.rabbitmq import server_script
from manifold.settings import Settings
from tests.infra.environments import offline_copy, planned
from tests.infra.erlang import erlang
from tests.infra.made import made_up
from tests.infra.tls_site import FACES, Site, servers
from tests.stores.servers import VERSITYGW, postgresql_programs, require
from tests.support.redis_users import SERVICES
from tests.support.servers import ROOT, start, stopping, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not installed"),
]
AT_ONCE = Retry(NoBackoff(), 0)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require(VERSITYGW, postgresql_programs() or Path("PostgreSQL"), server_script() or Path("rabbitmq-server"))
    folder = tmp_path_factory.mktemp("site")
    made = made_up(folder / "kept", "certificates.sh", "secrets.sh")
    with servers(Site(folder, planned(offline_copy(folder / "infra"), "local"), made)) as running:
        yield running


def files(site: Site, of: str) -> TlsFiles:
    """The certificate and CA files of a service."""
    folder = site.certificate(of)
    return TlsFiles(*(str(folder / name) for name in ("ca.crt", "tls.crt", "tls.key")))


def stranger(site: Site, tmp_path: Path) -> TlsFiles:
    """A certificate of the vehicles' CA, used against servers that trust the services' CA."""
    file = tmp_path / "vehicle.pem"
    file.write_text(site.made.run("certificates.sh", "--vehicle", "1M8GDM9AXKP042788").stdout)
    return TlsFiles(str(site.certificate("api") / "ca.crt"), str(file))


def vehicle_ca(site: Site) -> str:
    """The vehicles' CA."""
    return str(site.made.mount("vehicle-ca", site.folder / "vehicle-ca") / "ca.crt")


def answer(port: int, context: ssl.SSLContext | None, said: bytes) -> bytes:
    """The answer of a server; empty if there is none."""
    with socket.create_connection(("localhost", port), 10) as plain:
        try:
            connection = context.wrap_socket(plain, server_hostname="localhost") if context else plain
            connection.sendall(said)
            return connection.recv(64)
        except OSError:
            return b""


CONNECT = b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc"
GREETINGS = {"redis": (b"PING\r\n", b"-NOAUTH"), "rabbitmq": (b"AMQP\0\0\x09\x01", b"\1"), "emqx": (CONNECT, b"\x20")}


@pytest.mark.parametrize("server", GREETINGS)
def test_plaintext_and_certificates_of_other_cas_are_refused(site: Site, server: str, tmp_path: Path) -> None:
    port, (said, begins) = site.ports[server], GREETINGS[server]
    assert answer(port, client_context(files(site, "recorder")), said).startswith(begins)
    assert not answer(port, None, said).startswith(begins)
    assert not answer(port, client_context(TlsFiles(files(site, "api").ca)), said).startswith(begins)
    assert not answer(port, client_context(stranger(site, tmp_path)), said).startswith(begins)


@pytest.mark.parametrize("server", ["redis", "rabbitmq", "emqx", "object-store", "metrics"])
def test_a_server_is_trusted_only_with_the_services_ca(site: Site, server: str) -> None:
    with socket.create_connection(("localhost", site.ports[server]), 10) as plain, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
    vehicles = TlsFiles(vehicle_ca(site))
    with socket.create_connection(("localhost", site.ports[server]), 10) as plain, pytest.raises(ssl.SSLCertVerificationError):
        client_context(vehicles).wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_logs_in_to_redis_as_itself(site: Site, service: str) -> None:
    with connect(redis_url(site, service), retry=AT_ONCE) as ours:
        assert ours.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            ours.flushall()


def redis_url(site: Site, service: str) -> str:
    (line,) = (line for line in _settings(site, service) if line.startswith("redis_url"))
    return line.split('"')[1]


def _settings(site: Site, service: str) -> list[str]:
    return Path(site.variables(service)["MANIFOLD_FILE"]).read_text().splitlines()


def test_redis_probes_need_no_network(site: Site) -> None:
    here = (site.folder / "redis" / "socket").read_text()
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        command = [word.replace("/run/redis/redis.sock", here) for word in site.container("redis")[kind]["exec"]["command"]]
        assert subprocess.run(command, timeout=20).returncode == 0, kind


def test_postgresql_requires_tls_and_limits_each_user_to_its_database(site: Site) -> None:
    (line,) = (line for line in _settings(site, "recorder") if line.startswith("catalog_uri"))
    airflow = site.here(site.made.secret("airflow")["sql-alchemy-conn"], "airflow")
    for uri in (line.split('"')[1], airflow):
        url = make_url(uri).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False)) as ours:
            row = ours.execute("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
            assert row is not None
            assert (row[0], row[1] >= "TLSv1.2") == (True, True)
        for wrong in (url.update_query_dict({"sslmode": "disable"}), url.set(database="postgres")):
            with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
                psycopg.connect(wrong.render_as_string(hide_password=False))
        other = url.update_query_dict({"sslrootcert": vehicle_ca(site)})
        with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
            psycopg.connect(other.render_as_string(hide_password=False))


def test_rabbitmq_serves_its_metrics_over_https_only(site: Site) -> None:
    port, trust = site.ports["metrics"], client_context(TlsFiles(files(site, "prometheus").ca))
    assert "rabbitmq_" in httpx.get(f"https://localhost:{port}/metrics", verify=trust, trust_env=False).text
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{port}/metrics", trust_env=False)


def test_a_service_shows_its_certificate_to_the_broker_and_verifies_it(site: Site) -> None:
    url = f"mqtts://localhost:{site.ports['emqx']}"

    async def scenario() -> None:
        async with Mqtt(url, "sdv-recorder-0", tls=files(site, "recorder")) as ours:
            async with asyncio.timeout(20):
                await ours.connected.wait()
        credulous = TlsFiles(certificate=files(site, "recorder").certificate, key=files(site, "recorder").key)
        async with Mqtt(url, "sdv-recorder-1", tls=credulous) as ours:
            await asyncio.to_thread(wait_until, lambda: "CERTIFICATE_VERIFY_FAILED" in ours.problem, what="a foreign broker")
            assert not ours.connected.is_set()

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def services(site: Site) -> Iterator[None]:
    """All services, on queues marked as loaded."""
    with connect(redis_url(site, "jobs")) as ours:
        Loader(ours, Policy.of(Settings())).mark_loaded(1)
    with ExitStack() as running:
        for service in ("recorder", "signals", "campaigner", "api", "dispatcher"):
            running.enter_context(site.service(service))
        yield


@pytest.mark.usefixtures("services")
def test_services_and_a_pipeline_run_work_as_the_environment_configures_them(site: Site) -> None:
    """Recorder, dispatcher, signals service and API over TLS to all servers, and the jobs of Airflow's tasks."""
    trust = client_context(TlsFiles(files(site, "prometheus").ca))
    token = site.made.secret("manifold")["http-token"]

    def health(service: str) -> httpx.Response:
        url = f"https://localhost:{site.ports[service]}"
        return httpx.get(f"{url}/healthz", verify=trust, trust_env=False, headers={"Authorization": f"Bearer {token}"})

    for service in FACES:
        wait_until(lambda service=service: health(service).status_code == 200, within_s=60, what=f"{service} healthy")  # type: ignore[misc]
    prometheus_sees(site, "manifold", *(site.ports[service] for service in FACES))
    assert "recorded" in publish(site)

    java = {"JAVA_TOOL_OPTIONS": truststore(site, site.folder)}  # as in every Airflow pod that starts Spark
    env = {**os.environ, **site.variables("jobs"), **java}
    ran = subprocess.run(
        [sys.executable, "-m", "manifold.console", "ingest", "--json"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(ran.stdout)["ingested"]["segments"] >= 1


@pytest.mark.usefixtures("services")
def test_airflow_orders_a_campaign_with_its_generated_token(site: Site) -> None:
    token = tomllib.loads(site.made.secret("manifold")["jobs.toml"])["api_token"]
    trusted = client_context(TlsFiles(str(site.certificate("airflow") / "ca.crt")))
    shown = {"Authorization": f"Bearer {token}", "On-Behalf-Of": "anna"}
    url = f"https://localhost:{site.ports['api']}/api/v1/campaigns/c-1/pause"

    answer = httpx.post(url, json={"why": "smoke"}, headers=shown, verify=trusted, trust_env=False, timeout=60)

    assert (answer.status_code, answer.json().get("by")) == (200, "airflow/anna"), answer.text


def truststore(site: Site, folder: Path) -> str:
    """Create the truststore of the services' CA as pods do; return the JVM options that use it."""
    made = [
        sys.executable,
        "-m",
        "pipelines.spark.truststore",
        str(site.certificate("airflow") / "ca.crt"),
        str(folder / "trust.p12"),
    ]
    subprocess.run(made, check=True, cwd=ROOT, timeout=60)
    (variable,) = {
        each["value"]
        for template in site.environment.templates().values()
        for container in template["spec"]["containers"]
        for each in container.get("env", [])
        if each["name"] == "JAVA_TOOL_OPTIONS"
    }
    return str(variable.replace("/tmp/", f"{folder}/"))


def publish(site: Site) -> str:
    """The output of `manifold send` for a publisher with an external certificate, key and CA in one file."""
    file, data = site.folder / "publisher.pem", site.folder / "map.bin"
    file.write_text(site.made.run("certificates.sh", "--client", "sdv-pub-console").stdout)
    data.write_bytes(b"by TLS")
    own = {"MANIFOLD_TLS_CERTIFICATE": str(file), "MANIFOLD_TLS_KEY": "", "MANIFOLD_TLS_CA": str(file)}
    given = {name: value for name, value in site.variables("jobs").items() if name != "MANIFOLD_FILE"} | own
    command = [sys.executable, "-m", "manifold.console", "send", "1M8GDM9AXKP042788", "--data", str(data)]
    ran = subprocess.run(command, env={**os.environ, **given}, cwd=site.folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_airflow_uses_tls_for_database_and_ui_and_health_inside_its_pod(site: Site) -> None:
    env, logs = site.airflow(), site.folder / "logs"
    airflow = str(Path(sys.executable).with_name("airflow"))
    subprocess.run([airflow, "db", "migrate"], env={**os.environ, **env}, check=True, capture_output=True, timeout=300)
    pages, health = site.ports["airflow"], site.ports["health"]
    trust = client_context(TlsFiles(files(site, "airflow").ca))

    def healthy() -> bool:
        try:
            parts = httpx.get(f"https://localhost:{pages}/api/v2/monitor/health", verify=trust, trust_env=False, timeout=5).json()
        except httpx.TransportError:
            return False
        return [parts[part]["status"] for part in ("metadatabase", "scheduler")] == ["healthy"] * 2

    with (
        stopping(start([airflow, "api-server"], port=pages, log=logs / "api-server.log", env=env)),
        stopping(start([airflow, "scheduler"], port=health, log=logs / "scheduler.log", env=env)),
    ):
        wait_until(healthy, within_s=120, what="Airflow to be healthy")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{pages}/api/v2/version", trust_env=False)
        listening = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
        addresses = {line.split()[1].partition(":")[0] for line in listening if line.split()[1].endswith(f":{health:04X}")}
        assert addresses == {"0100007F"}, "only 127.0.0.1"


def prometheus_sees(site: Site, job: str, *targets: int) -> None:
    """Wait until Prometheus, queried over HTTPS, has scraped each of them."""
    trust = client_context(TlsFiles(files(site, "grafana").ca))
    with site.prometheus(job, *targets) as url:

        def up() -> bool:
            answer = httpx.get(f"{url}/api/v1/query", params={"query": "sum(up)"}, verify=trust, trust_env=False)
            found = answer.json()["data"]["result"] if answer.is_success else []  # not ready at first
            return [each["value"][1] for each in found] == [str(len(targets))]

        wait_until(up, within_s=60, what=f"{len(targets)} targets that are up")
        plaintext_errors = httpx.get(f"{url.replace('https', 'http')}/-/ready", trust_env=False)
        assert plaintext_errors.text.strip() == "Client sent an HTTP request to an HTTPS server."


def test_emqx_nodes_connect_only_with_certificates_of_the_services_ca(site: Site, tmp_path: Path) -> None:
    """Erlang distribution as in ssl_dist.conf, between two nodes without EMQX."""
    ours, theirs = site.certificate("emqx"), tmp_path / "theirs"
    site.made.mount("emqx-vehicles-tls", theirs)  # signed by the other CA
    (theirs / "ca.crt").write_bytes((ours / "ca.crt").read_bytes())  # trusts our CA
    told = site.data("emqx")["ssl_dist.conf"]
    with erlang(told.replace("/opt/emqx/etc/tls/services", str(ours)), tmp_path / "a") as first:
        assert first.pings(told.replace("/opt/emqx/etc/tls/services", str(ours)), tmp_path / "b") == "pong"
        assert first.pings(told.replace("/opt/emqx/etc/tls/services", str(theirs)), tmp_path / "c") == "pang"
        assert first.pings("", tmp_path / "d") == "pang"


def test_an_emqx_node_needs_a_dns_name_of_its_certificate(site: Site, tmp_path: Path) -> None:
    """EMQX's default name, emqx@127.0.0.1, has a host that is no DNS name of the certificate."""
    told = site.data("emqx")["ssl_dist.conf"].replace("/opt/emqx/etc/tls/services", str(site.certificate("emqx")))
    with erlang(told, tmp_path / "a", "127.0.0.1") as first:
        assert first.pings(told, tmp_path / "b") == "pang"
    with erlang("", tmp_path / "c", "127.0.0.1") as plain:
        assert plain.pings("", tmp_path / "d") == "pong"  # Erlang accepts the name itself


def test_java_refuses_the_store_without_the_generated_truststore(site: Site, tmp_path: Path) -> None:
    """The pipeline run above, which has it, reads and writes there."""
    (tmp_path / "Ask.java").write_text(
        "class Ask { public static void main(String[] to) throws Exception { "
        "new java.net.URL(to[0]).openConnection().getInputStream(); } }"
    )
    command = ["java", str(tmp_path / "Ask.java"), f"https://localhost:{site.ports['object-store']}/health"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "unable to find valid certification path" in ran.stderr
