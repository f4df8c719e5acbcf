"""Alerts and lineage over external HTTPS: the system's CAs are trusted in addition to the object store's."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from manifold.lake.lineage import emit, flush
from manifold.runtime.alert import alert
from manifold.settings import Settings
from tests.stores.identities import Identity, new_identity


@pytest.fixture
def identity() -> Identity:
    return new_identity("outside")


@dataclass(frozen=True, slots=True)
class Outside:
    """A server that accepts any POST."""

    url: str
    taken: list[bytes]

    def was_told(self, **more: str) -> tuple[bool, bool]:
        """Whether an alert and a lineage event arrived here."""
        settings = Settings(alert_url=self.url, lineage_url=self.url, **more)  # type: ignore[arg-type]  # URLs are secret strings
        alerted = alert(settings, "held back", "a run")
        before = len(self.taken)
        assert emit(settings, [{"eventType": "START"}])
        assert flush(60)
        return alerted, len(self.taken) > before


@pytest.fixture
def outside(identity: Identity, tmp_path: Path) -> Iterator[Outside]:
    identity.write(tmp_path / "tls.crt", tmp_path / "tls.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    taken = list[bytes]()

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Outside(f"https://127.0.0.1:{server.server_port}/", taken)
    server.shutdown()
    server.server_close()


def test_system_cas_are_trusted_in_addition_to_the_object_store_ca(
    outside: Outside, identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pod: SSL_CERT_FILE names the store's CA, and the system's CAs are in a folder."""
    store, system = new_identity("store").write_authority(tmp_path / "store.crt"), tmp_path / "system"
    system.mkdir()
    identity.write_authority(system / "outside.crt")
    subprocess.run(["openssl", "rehash", system], check=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(store))
    monkeypatch.setenv("SSL_CERT_DIR", str(system))
    assert outside.was_told() == (True, True)


def test_a_ca_of_the_settings_is_trusted_and_an_unknown_one_is_not(outside: Outside, identity: Identity, tmp_path: Path) -> None:
    assert outside.was_told(tls_ca=str(identity.write_authority(tmp_path / "ca.crt"))) == (True, True)
    assert outside.was_told() == (False, False)
    assert outside.was_told(tls_ca=str(tmp_path / "gone.crt")) == (False, False)
