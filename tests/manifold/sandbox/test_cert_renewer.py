"""The certificate renewer: killed between any two steps, with Redis stopped, and during CA rotation with a running Redis."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from manifold.contracts.tls import CA, OF_INNER, OPERATOR, REVOKED, SECRETS, SERVER, TlsFiles
from manifold.runtime import renewal
from manifold.runtime.redis import connect
from manifold.runtime.tls import client_context, revoked_serials, server_context, web_server_context
from manifold.sandbox.platform import authority, ca_rotation, cert_registry, cert_renewer, certificates, redis_certificates
from manifold.sandbox.platform.authority import FRONT_DOOR, INNER, Authority, signer, trusted_certificates
from manifold.sandbox.platform.programs import command, programs
from manifold.settings import Settings
from tests.support.servers import free_port, start, stopping, wait_until

NOW = datetime.now(UTC)
CHANGES = ("open", "os.rename", "os.link", "os.remove")  # events that Python audits before the change


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def aged(home: Path) -> Settings:
    """A home whose CAs are due for rotation and whose certificates are due for renewal."""
    settings = Settings(home=home, tls=True, redis_port=free_port())
    certificates.create_missing(settings, now=ago(310))
    certificates.maintain(settings, now=ago(65))
    certificates.maintain(settings, now=ago(6))
    return settings


class Killer:
    """Kill the process (as `kill -9`) before its n-th change of a file. Shared, because an audit hook cannot be removed."""

    def __init__(self) -> None:
        self.left, self.folder = -1, ""
        sys.addaudithook(self.hear)

    def hear(self, event: str, told: tuple[Any, ...]) -> None:
        if self.left < 0 or event not in CHANGES or not str(told[0]).startswith(self.folder):
            return
        if event == "open" and not (isinstance(told[2], int) and told[2] & os.O_ACCMODE):
            return
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


KILLER = Killer()


def killed_before_change(number: int, folder: Path, act: Callable[[], object]) -> bool:
    """Run the work in a process that is killed before this many changes; return false if it finished first."""
    pid = os.fork()
    if pid == 0:
        try:
            KILLER.left, KILLER.folder = number, str(folder)
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # a test's process must not continue twice
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def assert_whole(settings: Settings) -> None:
    """Check that every file is complete, has its key, and is signed by a CA that everyone trusts."""
    folder = settings.home / SECRETS
    for leaf in certificates.leaves(settings):
        context = web_server_context(TlsFiles(certificate=str(folder / leaf.file)))  # refuses a key of another certificate
        assert isinstance(context, ssl.SSLContext)
        shown = x509.load_pem_x509_certificate((folder / leaf.file).read_bytes())
        by = next(each for each in trusted_certificates(folder, leaf.ca) if each.subject == shown.issuer)
        shown.verify_directly_issued_by(by)
    for ca in (FRONT_DOOR, INNER):
        assert signer(folder, ca) in trusted_certificates(folder, ca)
    server_context(folder / CA, folder / SERVER)
    revoked_serials(folder / CA, folder / REVOKED)


def announcing(home: Path) -> Settings:
    settings = Settings(home=home, tls=True)
    certificates.create_missing(settings, now=ago(250))
    certificates.maintain(settings, now=ago(5.5))
    return settings


def dropping(home: Path) -> Settings:
    """A home whose former CAs have no valid certificates left."""
    settings = aged(home)
    certificates.maintain(settings)
    for ca in (FRONT_DOOR, INNER):
        by = [
            row.serial
            for row in cert_registry.unexpired(home)
            if row.issuer != str(names(home, ca)[-1]) and ca.is_issuer(row.issuer)
        ]
        certificates.revoke(home, by)
    return settings


def names(home: Path, ca: Authority) -> list[str]:
    return [ca_rotation.name_of(each) for each in trusted_certificates(home / SECRETS, ca)]


@pytest.mark.parametrize("state", [announcing, aged, dropping])
def test_a_kill_between_any_two_steps_leaves_valid_files_and_the_next_run_finishes(
    tmp_path: Path, state: Callable[[Path], Settings]
) -> None:
    state(tmp_path / "before")
    for number in count():
        settings = Settings(home=tmp_path / str(number), tls=True)
        shutil.copytree(tmp_path / "before", settings.home)
        if not killed_before_change(number, settings.home / SECRETS, lambda of=settings: certificates.maintain(of)):  # type: ignore[misc]
            break
        assert_whole(settings)
        certificates.maintain(settings)
        assert_whole(settings)
        assert certificates.overdue(settings) == []
        assert certificates.maintain(settings) == []
        drafts = [file.name for file in (settings.home / SECRETS).glob(".*") if file.name != ".authority.lock"]
        assert drafts == []
    assert number > 4


@contextmanager
def keeping(settings: Settings) -> Iterator[None]:
    """A renewer that runs without pauses and stops as soon as requested."""
    stop = Event()
    loop = Thread(target=cert_renewer.run, args=(settings, stop), daemon=True)
    loop.start()
    try:
        yield
    finally:
        stop.set()
        loop.join(10)
    assert not loop.is_alive(), "the process hangs"


def seen(settings: Settings, certificate: str) -> tuple[bytes, bytes]:
    """The certificate that Redis presents to a client that has `certificate`, and its answer to PING; both empty if refused."""
    ca = settings.tls_files("").ca
    try:
        with (
            socket.create_connection(("127.0.0.1", settings.redis_port), 10) as plain,
            client_context(TlsFiles(ca, certificate)).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall(b"PING\r\n")
            return secured.getpeercert(binary_form=True) or b"", secured.recv(64)
    except OSError:
        return b"", b""


def shows_what_is_there(settings: Settings) -> bool:
    folder = settings.home / SECRETS
    own = ssl.PEM_cert_to_DER_cert((folder / SERVER).read_text().partition("-----BEGIN PRIVATE")[0])
    return seen(settings, str(folder / OF_INNER.format(OPERATOR)))[0] == own


def test_redis_gets_renewed_certificates_after_an_outage_and_during_ca_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, former = aged(tmp_path), tmp_path / "former.pem"
    shutil.copy(tmp_path / SECRETS / OF_INNER.format(OPERATOR), former)
    for pause in ("CHECK_INTERVAL_S", "RETRY_DELAY_S"):
        monkeypatch.setattr(cert_renewer, pause, 0.05)
    monkeypatch.setattr(redis_certificates, "TIMEOUT_S", 0.5)
    program = next(each for each in programs(settings) if each.kind == "redis")
    server = start(command(program, settings), port=settings.redis_port, log=tmp_path / "redis.log")
    with stopping(server), connect(settings.redis) as client:
        stays = client.client_id()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with keeping(settings):
                wait_until(
                    lambda: not certificates.overdue(settings), what="all certificates to be renewed while Redis does not respond"
                )
        finally:
            os.kill(server.pid, signal.SIGCONT)
        with keeping(settings):
            wait_until(lambda: shows_what_is_there(settings), what="Redis to show the renewed certificate")
            assert seen(settings, str(former))[1], "certificates of the former CA are valid until they expire"
            (tmp_path / SECRETS / OF_INNER.format("jobs")).write_text("half a file")
            certificates.renew(settings, within_days=certificates.LEAF_DAYS + 1)
            wait_until(lambda: shows_what_is_there(settings), what="Redis to present the certificate renewed by another process")
            certificates.revoke(tmp_path, [row.serial for row in cert_registry.unexpired(tmp_path) if row.issuer == INNER.name])
            wait_until(lambda: not seen(settings, str(former))[1], what="the former CA to be distrusted")
            assert seen(settings, str(tmp_path / SECRETS / OF_INNER.format("jobs")))[1]
        assert client.client_id() == stays, "connected clients stay connected"


def test_certificates_issued_during_ca_rotation_are_signed_by_the_named_ca(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(tmp_path)
    folder = tmp_path / SECRETS

    def in_between(*of: Any) -> list[x509.Certificate]:
        monkeypatch.undo()
        ca_rotation.succeed(folder, FRONT_DOOR)
        return trusted_certificates(*of)

    monkeypatch.setattr(authority, "trusted_certificates", in_between)
    made = x509.load_pem_x509_certificate(certificates.issue(tmp_path, "vehicle"))
    made.verify_directly_issued_by(next(each for each in trusted_certificates(folder, FRONT_DOOR) if each.subject == made.issuer))


def test_a_partly_written_file_costs_no_server_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.create_missing(Settings(home=tmp_path, tls=True))
    file = tmp_path / SECRETS / SERVER
    context = web_server_context(TlsFiles(certificate=str(file)))
    monkeypatch.setattr(renewal, "CHECK_INTERVAL_S", 0.01)

    async def scenario() -> None:
        keeping = asyncio.create_task(renewal.keep_renewed(context, TlsFiles(certificate=str(file))))
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        await asyncio.sleep(0)
        certificates.renew(Settings(home=tmp_path, tls=True), within_days=certificates.LEAF_DAYS + 1)
        file.write_text(file.read_text().partition("-----BEGIN PRIVATE")[0])
        with capture_logs() as told:
            while not told:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        asks = client_context(TlsFiles(str(tmp_path / SECRETS / CA)))
        _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1], ssl=asks)
        writer.close()
        keeping.cancel()
        server.close()

    asyncio.run(scenario())
