"""The servers of an environment as its manifests configure them, and services that come to them with what its scripts made up."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
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
from manifold.runtime.redis import connect
from manifold.runtime.tls import client_context
from manifold.sandbox.platform.rabbitmq import server_script
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
    """What a service shows, and whom it believes."""
    folder = site.certificate(of)
    return TlsFiles(*(str(folder / name) for name in ("ca.crt", "tls.crt", "tls.key")))


def stranger(site: Site, tmp_path: Path) -> TlsFiles:
    """A certificate of the vehicles' authority, for who believes the services'."""
    file = tmp_path / "vehicle.pem"
    file.write_text(site.made.run("certificates.sh", "--vehicle", "1M8GDM9AXKP042788").stdout)
    return TlsFiles(str(site.certificate("api") / "ca.crt"), str(file))


def vehicle_ca(site: Site) -> str:
    """The other authority."""
    return str(site.made.mount("vehicle-ca", site.folder / "vehicle-ca") / "ca.crt")


def answer(port: int, context: ssl.SSLContext | None, said: bytes) -> bytes:
    """What a server answers; empty: nothing."""
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
def test_nobody_is_heard_in_the_clear_or_without_a_certificate_of_the_services_authority(
    site: Site, server: str, tmp_path: Path
) -> None:
    port, (said, begins) = site.ports[server], GREETINGS[server]
    assert answer(port, client_context(files(site, "recorder")), said).startswith(begins)
    assert not answer(port, None, said).startswith(begins)
    assert not answer(port, client_context(TlsFiles(files(site, "api").ca)), said).startswith(begins)
    assert not answer(port, client_context(stranger(site, tmp_path)), said).startswith(begins)


@pytest.mark.parametrize("server", ["redis", "rabbitmq", "emqx", "object-store", "metrics"])
def test_a_server_is_believed_by_those_who_have_its_authority_and_by_nobody_else(site: Site, server: str) -> None:
    with socket.create_connection(("localhost", site.ports[server]), 10) as plain, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
    vehicles = TlsFiles(vehicle_ca(site))
    with socket.create_connection(("localhost", site.ports[server]), 10) as plain, pytest.raises(ssl.SSLCertVerificationError):
        client_context(vehicles).wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_comes_to_redis_as_itself(site: Site, service: str) -> None:
    (line,) = (line for line in _settings(site, service) if line.startswith("redis_url"))
    url = line.split('"')[1]
    with connect(url, retry=AT_ONCE) as ours:
        assert ours.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            ours.flushall()


def _settings(site: Site, service: str) -> list[str]:
    return Path(site.variables(service)["MANIFOLD_FILE"]).read_text().splitlines()


def test_the_probes_of_redis_need_no_network(site: Site) -> None:
    here = (site.folder / "redis" / "socket").read_text()
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        command = [word.replace("/run/redis/redis.sock", here) for word in site.container("redis")[kind]["exec"]["command"]]
        assert subprocess.run(command, timeout=20).returncode == 0, kind


def test_postgresql_lets_in_by_tls_alone_each_user_to_its_own_database(site: Site) -> None:
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


def test_rabbitmq_tells_prometheus_by_https_alone(site: Site) -> None:
    port, trust = site.ports["metrics"], client_context(TlsFiles(files(site, "prometheus").ca))
    assert "rabbitmq_" in httpx.get(f"https://localhost:{port}/metrics", verify=trust, trust_env=False).text
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{port}/metrics", trust_env=False)


def test_a_service_comes_to_the_broker_with_its_certificate_and_believes_no_other_broker(site: Site) -> None:
    url = f"mqtts://localhost:{site.ports['emqx']}"

    async def scenario() -> None:
        async with Mqtt(url, "sdv-recorder-0", tls=files(site, "recorder")) as ours:
            async with asyncio.timeout(20):
                await ours.connected.wait()
        credulous = TlsFiles(certificate=files(site, "recorder").certificate, key=files(site, "recorder").key)
        async with Mqtt(url, "sdv-recorder-1", tls=credulous) as ours:
            await asyncio.to_thread(
                wait_until, lambda: "CERTIFICATE_VERIFY_FAILED" in ours.problem, what="a broker of a stranger's"
            )
            assert not ours.connected.is_set()

    asyncio.run(scenario())


def test_services_run_as_the_environment_sets_them_and_a_run_of_the_pipelines_goes_through(site: Site) -> None:
    """All four over TLS to all servers: recorder, dispatcher, AMQP door and API; and what Airflow's tasks do."""
    trust = client_context(TlsFiles(files(site, "prometheus").ca))
    token = site.made.secret("manifold")["http-token"]

    def health(service: str) -> httpx.Response:
        url = f"https://localhost:{site.ports[service]}"
        return httpx.get(f"{url}/healthz", verify=trust, trust_env=False, headers={"Authorization": f"Bearer {token}"})

    believes = {"JAVA_TOOL_OPTIONS": truststore(site, site.folder)}  # as in every pod of Airflow, where jobs start Spark

    def job(*words: str) -> str:
        env = {**os.environ, **site.variables("jobs"), **believes}
        ran = subprocess.run(
            [sys.executable, "-m", "manifold.console", *words], env=env, cwd=ROOT, capture_output=True, text=True, timeout=180
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    with site.service("recorder"), site.service("signals"), site.service("api"):
        job("rebuild")  # nobody has said that the empty queues lack nothing
        with site.service("dispatcher"):
            for service in FACES:
                wait_until(lambda service=service: health(service).status_code == 200, within_s=60, what=f"{service} healthy")  # type: ignore[misc]
            prometheus_sees(site, "manifold", *(site.ports[service] for service in FACES))
            assert "recorded" in publish(site)
        assert json.loads(job("ingest", "--json"))["ingested"]["segments"] >= 1


def truststore(site: Site, folder: Path) -> str:
    """Make the truststore of the services' authority as pods do; the options by which a JVM uses it, as theirs are."""
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
    """What `manifold send` says to a publisher with a certificate for outside, in one file with its key and the authority."""
    file, data = site.folder / "publisher.pem", site.folder / "map.bin"
    file.write_text(site.made.run("certificates.sh", "--client", "sdv-pub-console").stdout)
    data.write_bytes(b"by TLS")
    own = {"MANIFOLD_TLS_CERTIFICATE": str(file), "MANIFOLD_TLS_KEY": "", "MANIFOLD_TLS_CA": str(file)}
    given = {name: value for name, value in site.variables("jobs").items() if name != "MANIFOLD_FILE"} | own
    command = [sys.executable, "-m", "manifold.console", "send", "1M8GDM9AXKP042788", "--data", str(data)]
    ran = subprocess.run(command, env={**os.environ, **given}, cwd=site.folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_airflow_keeps_its_database_and_shows_its_pages_by_tls_and_its_health_to_its_own_pod(site: Site) -> None:
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
        assert addresses == {"0100007F"}, "127.0.0.1 alone"


def prometheus_sees(site: Site, job: str, *targets: int) -> None:
    """Return when Prometheus, which is asked by HTTPS, has got an answer from each of them."""
    trust = client_context(TlsFiles(files(site, "grafana").ca))
    with site.prometheus(job, *targets) as url:

        def up() -> bool:
            answer = httpx.get(f"{url}/api/v1/query", params={"query": "sum(up)"}, verify=trust, trust_env=False)
            found = answer.json()["data"]["result"] if answer.is_success else []  # at first it is not ready
            return [each["value"][1] for each in found] == [str(len(targets))]

        wait_until(up, within_s=60, what=f"{len(targets)} targets that are up")
        plaintext_errors = httpx.get(f"{url.replace('https', 'http')}/-/ready", trust_env=False)
        assert plaintext_errors.text.strip() == "Client sent an HTTP request to an HTTPS server."


def test_nodes_of_emqx_reach_each_other_by_certificates_of_the_services_authority_alone(site: Site, tmp_path: Path) -> None:
    """Erlang's distribution as ssl_dist.conf sets it, between two nodes without EMQX."""
    ours, theirs = site.certificate("emqx"), tmp_path / "theirs"
    site.made.mount("emqx-vehicles-tls", theirs)  # of the other authority
    (theirs / "ca.crt").write_bytes((ours / "ca.crt").read_bytes())  # it believes us
    told = site.data("emqx")["ssl_dist.conf"]
    with erlang(told.replace("/opt/emqx/etc/tls/services", str(ours)), tmp_path / "a") as first:
        assert first.pings(told.replace("/opt/emqx/etc/tls/services", str(ours)), tmp_path / "b") == "pong"
        assert first.pings(told.replace("/opt/emqx/etc/tls/services", str(theirs)), tmp_path / "c") == "pang"
        assert first.pings("", tmp_path / "d") == "pang"


def test_a_node_of_emqx_needs_a_dns_name_that_is_in_its_certificate(site: Site, tmp_path: Path) -> None:
    """As EMQX's default name, emqx@127.0.0.1: its host is no DNS name of the certificate."""
    told = site.data("emqx")["ssl_dist.conf"].replace("/opt/emqx/etc/tls/services", str(site.certificate("emqx")))
    with erlang(told, tmp_path / "a", "127.0.0.1") as first:
        assert first.pings(told, tmp_path / "b") == "pang"
    with erlang("", tmp_path / "c", "127.0.0.1") as plain:
        assert plain.pings("", tmp_path / "d") == "pong"  # the name alone is none that Erlang refuses


def test_java_believes_the_stores_authority_by_the_truststore_that_pods_make(site: Site, tmp_path: Path) -> None:
    options, port = truststore(site, tmp_path), site.ports["object-store"]
    (tmp_path / "Ask.java").write_text(
        "class Ask { public static void main(String[] to) throws Exception { System.out.println(((java.net.HttpURLConnection) "
        "new java.net.URL(to[0]).openConnection()).getResponseCode()); } }"
    )

    def asked(*options: str) -> subprocess.CompletedProcess[str]:
        command = ["java", *options, str(tmp_path / "Ask.java"), f"https://localhost:{port}/health"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert asked(options).stdout == "200\n"
    assert "unable to find valid certification path" in asked().stderr
