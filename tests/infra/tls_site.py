"""An environment on this machine: servers as in Terraform's manifests, and services with the generated secrets.

Only ports and folders differ. EMQX is not available here; a Mosquitto that requires certificates in the same way replaces it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML

from manifold.sandbox.platform import rabbitmq
from manifold.settings import Settings
from tests.infra.environments import Environment, Json
from tests.infra.made import Made
from tests.stores.servers import VERSITYGW, postgresql_programs, unprivileged
from tests.support.servers import ROOT, Server, free_port, start, start_python, stopping, wait_until

SERVERS = {"redis": 6379, "postgres": 5432, "rabbitmq": 5671, "object-store": 7070, "emqx": 8884}
FACES = {"recorder": 9101, "dispatcher": 9110, "campaigner": 9106, "signals": 9105, "api": 9104}
MODULES = {"dispatcher": "dispatcher", "campaigner": "manifold.campaigns"}
SOCKET = "/run/redis/redis.sock"


@dataclass(slots=True)
class Site:
    """Servers and services, each on its own port."""

    folder: Path
    environment: Environment
    made: Made
    ports: dict[str, int] = field(
        default_factory=lambda: {name: free_port() for name in (*SERVERS, *FACES, "metrics", "airflow", "health", "logs")}
    )

    def certificate(self, of: str) -> Path:
        """The folder with the certificate of a server or service."""
        folder = self.folder / "tls" / of
        return folder if folder.exists() else self.made.mount(f"{of}-tls", folder)

    def here(self, text: str, of: str) -> str:
        """Translate a text of the environment to this machine's names, for `of` to read."""
        for name, port in SERVERS.items():
            text = text.replace(f"{name}.manifold.svc:{port}", f"localhost:{self.ports[name]}")
        for name, port in FACES.items():
            text = re.sub(rf"(?:recorder-0\.)?\b{name}\.manifold\.svc:{port}", f"localhost:{self.ports[name]}", text)
        return text.replace("/etc/manifold-tls", str(self.certificate(of)))

    def data(self, name: str) -> dict[str, str]:
        """The content of a ConfigMap."""
        (found,) = (each["data"] for each in self.environment.of_kind("ConfigMap") if each["metadata"]["name"] == name)
        return dict(found)

    def container(self, name: str) -> Json:
        """The container of a server."""
        (made,) = (each for each in self.environment.of_kind("StatefulSet") if each["metadata"]["name"] == name)
        found: Json = made["spec"]["template"]["spec"]["containers"][0]
        return found

    def variables(self, service: str) -> dict[str, str]:
        """The environment of a service's pod, with its settings file in its own folder."""
        home = self.folder / "homes" / service
        home.mkdir(parents=True, exist_ok=True)
        file = home / "manifold.toml"
        file.touch(mode=0o600)
        of_certificate = "airflow" if service == "jobs" else service
        secrets = self.made.secret("manifold")
        file.write_text(self.here(secrets[f"{service}.toml"], of_certificate).replace("/etc/manifold/", f"{home}/"))
        (home / "api-tokens").write_text(secrets["api-tokens"])
        given = {name: self.here(value, of_certificate) for name, value in self.data("manifold").items()}
        own = {
            "MANIFOLD_FILE": str(file),
            "MANIFOLD_HOME": str(home),
            "MANIFOLD_MQTT_SHARED": "off",
        }  # Mosquitto has no shared subscriptions of $ topics
        return given | own | {f"MANIFOLD_{name.upper()}_PORT": str(self.ports[name]) for name in FACES}

    def airflow(self) -> dict[str, str]:
        """The environment of Airflow's pods. Ports that none of their variables names are taken from `ports`."""
        home = self.folder / "airflow"
        folders = {"/etc/airflow-secret": home / "secret", "/var/lib/airflow": home, "/opt/manifold": ROOT}
        given = {name: _moved(self.here(value, "airflow"), folders) for name, value in self.data("airflow").items()}
        address = f"https://localhost:{self.ports['airflow']}"
        given = {name: value.replace("https://airflow.manifold.svc:8080", address) for name, value in given.items()}
        ports = {"API__PORT": "airflow", "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": "health"}
        ports |= {"LOGGING__WORKER_LOG_SERVER_PORT": "logs"}
        for key, value in self.made.secret("airflow").items():
            (home / "secret").mkdir(parents=True, exist_ok=True)
            (home / "secret" / key).write_text(self.here(value, "airflow"))
        shutil.copy(home / "secret" / "passwords.json", home)  # as the pod's init container does
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        named = {f"AIRFLOW__{name}": str(self.ports[port]) for name, port in ports.items()}
        return self.variables("jobs") | given | named | {"PATH": tools, "PYTHONPATH": str(ROOT)}

    @contextmanager
    def service(self, name: str) -> Iterator[Server]:
        """Run a service for the duration of the block."""
        given = ["--replica", "0"] if name == "dispatcher" else []
        module, log = MODULES.get(name, f"manifold.{name}"), self.folder / "logs" / f"{name}.log"
        # Cold: Arrow reads the variables that name a CA when it is imported.
        with stopping(start_python(module, *given, port=self.ports[name], log=log, env=self.variables(name))) as server:
            yield server

    @contextmanager
    def prometheus(self, job: str, *targets: int) -> Iterator[str]:
        """Prometheus with the configuration of that job and these targets instead of pod discovery; yields its address."""
        home, port = self.folder / "prometheus", free_port()
        home.mkdir()
        given = {name: self._of_prometheus(text) for name, text in self.data("prometheus").items()}
        (home / "http-token").write_text(self.made.secret("manifold")["http-token"])
        found = YAML(typ="safe").load(given["prometheus.yml"])
        (asked,) = (each for each in found["scrape_configs"] if each["job_name"] == job)
        del asked["relabel_configs"], asked["kubernetes_sd_configs"], found["rule_files"]
        asked["static_configs"] = [{"targets": [f"localhost:{target}" for target in targets]}]
        asked |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
        (home / "prometheus.yml").write_text(json.dumps(found | {"scrape_configs": [asked]}))
        (home / "web.yml").write_text(given["web.yml"])
        files = [f"--config.file={home}/prometheus.yml", f"--web.config.file={home}/web.yml", f"--storage.tsdb.path={home}/data"]
        command = ["prometheus", *files, f"--web.listen-address=127.0.0.1:{port}"]
        with stopping(start(command, port=port, log=self.folder / "logs" / "prometheus.log")):
            yield f"https://localhost:{port}"

    def _of_prometheus(self, text: str) -> str:
        text = text.replace("/etc/prometheus-tls", str(self.certificate("prometheus")))
        return text.replace("/etc/manifold", str(self.folder / "prometheus"))


@contextmanager
def servers(site: Site) -> Iterator[Site]:
    """Run all servers for the duration of the block."""
    with ExitStack() as stack:
        stack.enter_context(stopping(_redis(site, stack)))
        stack.enter_context(_postgres(site))
        stack.enter_context(stopping(_object_store(site)))
        for server in _rabbitmq(site):
            stack.enter_context(stopping(server))
        stack.enter_context(stopping(_broker(site)))
        yield site


def _redis(site: Site, stack: ExitStack) -> Server:
    home = site.folder / "redis"
    home.mkdir()
    (home / "users.acl").write_text(site.made.secret("redis")["users.acl"])
    short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redis-")))  # socket paths are limited in length
    (home / "socket").write_text(str(short / "redis.sock"))
    text = site.data("redis")["redis.conf"].replace("/etc/redis/tls", str(site.certificate("redis")))
    text = text.replace("/etc/redis", str(home)).replace("dir /data", f"dir {home}").replace(SOCKET, str(short / "redis.sock"))
    (home / "redis.conf").write_text(text.replace("tls-port 6379", f"tls-port {site.ports['redis']}"))
    return start(["redis-server", str(home / "redis.conf")], port=site.ports["redis"], log=home / "log")


@contextmanager
def _postgres(site: Site) -> Iterator[None]:
    programs = postgresql_programs()
    assert programs is not None
    home = site.folder / "postgres"
    home.mkdir()
    user, data, port = unprivileged(home), home / "data", site.ports["postgres"]
    run_as = [] if user is None else ["setpriv", f"--reuid={user}", "--clear-groups"]
    subprocess.run(
        [*run_as, programs / "initdb", "-D", data, "-U", "postgres", "--no-sync", "-E", "UTF8"], check=True, capture_output=True
    )
    shutil.copytree(site.certificate("postgres"), home / "tls")
    secret = site.made.mount("postgres", home / "secret")
    (home / "pg_hba.conf").write_text(site.data("postgres")["pg_hba.conf"])
    if user is not None:
        for file in (home / "tls", *(home / "tls").iterdir()):
            os.chown(file, user, -1)
    folders = {"/etc/postgres-tls": home / "tls", "/etc/postgres-config": home}
    options = [_moved(word, folders) for word in site.container("postgres")["args"][1:]]
    command = [
        *run_as,
        str(programs / "postgres"),
        "-D",
        str(data),
        "-p",
        str(port),
        "-k",
        str(home),
        "-h",
        "127.0.0.1",
        "-F",
        *options,
    ]
    server = start(command, port=port, log=home / "log")
    try:
        script = site.data("postgres")["databases.sh"].replace("/etc/postgres", str(secret))
        asked = {**os.environ, "PGHOST": str(home), "PGPORT": str(port)}
        wait_until(lambda: subprocess.run(["pg_isready", "-q", "-U", "postgres"], env=asked).returncode == 0, what="PostgreSQL")
        subprocess.run(["sh", "-c", script], env=asked, check=True, capture_output=True)
        yield
    finally:
        server.process.send_signal(signal.SIGINT)  # without waiting for clients
        server.stop()


def _object_store(site: Site) -> Server:
    home = site.folder / "objects"
    (home / "manifold").mkdir(parents=True)
    keys = site.made.secret("object-store")
    folders = {"/etc/object-store": site.certificate("object-store"), "/data": home}
    arguments = [_moved(word, folders) for word in site.container("object-store")["args"]]
    arguments[arguments.index("--port") + 1] = f"127.0.0.1:{site.ports['object-store']}"
    env = {"ROOT_ACCESS_KEY": keys["access-key"], "ROOT_SECRET_KEY": keys["secret-key"]}
    return start([str(VERSITYGW), *arguments], port=site.ports["object-store"], log=site.folder / "objects.log", env=env)


def _rabbitmq(site: Site) -> list[Server]:
    settings = Settings(home=site.folder / "rabbit", amqp_port=free_port())  # its port and the next belong to Erlang
    rabbitmq.command(settings)  # generates files that are overwritten below
    home = rabbitmq.folder(settings)
    (home / "definitions.json").write_text(site.made.secret("rabbitmq")["definitions.json"])
    given = site.data("rabbitmq")
    text = given["rabbitmq.conf"].replace("/etc/rabbitmq/tls", str(site.certificate("rabbitmq")))
    text = text.replace("/etc/rabbitmq/definitions/definitions.json", str(home / "definitions.json"))
    text = text.replace("5671", str(site.ports["rabbitmq"])).replace("15691", str(site.ports["metrics"]))
    (home / "rabbitmq.conf").write_text(text.replace("1GB", "64MB"))
    (home / "enabled_plugins").write_text(given["enabled_plugins"])
    manifest = {each["name"]: each["value"] for each in site.container("rabbitmq")["env"]}
    env = rabbitmq.environment(settings) | {name: value for name, value in manifest.items() if name != "RABBITMQ_NODENAME"}
    epmd = start(rabbitmq.epmd_command(settings), port=rabbitmq.epmd_port(settings), log=home / "epmd.log")
    try:
        return [
            epmd,
            start(
                [str(rabbitmq.server_script())], port=site.ports["rabbitmq"], log=site.folder / "logs" / "rabbitmq.log", env=env
            ),
        ]
    except BaseException:
        epmd.stop()
        raise


def _broker(site: Site) -> Server:
    files = site.certificate("emqx")
    file = site.folder / "mosquitto.conf"
    file.write_text(
        f"listener {site.ports['emqx']} 127.0.0.1\ncafile {files}/ca.crt\ncertfile {files}/tls.crt\nkeyfile {files}/tls.key\n"
        "require_certificate true\nuse_identity_as_username true\nuser root\n"
    )
    return start(["mosquitto", "-c", str(file)], port=site.ports["emqx"], log=site.folder / "mosquitto.log")


def _moved(word: str, folders: Mapping[str, Path]) -> str:
    for pod, here in folders.items():
        if pod in word:
            return word.replace(pod, str(here))
    return word
