"""The keeper: killed between any two steps, with Redis away or stopped, and while one CA follows another at a Redis that runs."""

import os
import shutil
import signal
import ssl
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from adapters.tls import revoked_serials, server_context, web_server_context
from contracts.settings import Settings
from contracts.tls import CA, REVOKED, SECRETS, SERVER
from sandbox.platform import certificates, issued, succession
from sandbox.platform.authority import FRONT_DOOR, INNER, Authority, believed, signer
from tests.servers import free_port

NOW = datetime.now(UTC)
CHANGES = ("open", "os.rename", "os.link", "os.remove")  # what Python tells of before it is done


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def aged(home: Path) -> Settings:
    """A home in which, by now, the CAs follow one another, and all that they signed is to be renewed."""
    settings = Settings(home=home, tls=True, redis_port=free_port())
    certificates.make_up(settings, now=ago(310))
    certificates.keep(settings, now=ago(65))
    certificates.keep(settings, now=ago(6))
    return settings


class Killer:
    """Ends the process, as `kill -9` does, before its n-th change of a file. One for all: who hears cannot be unheard."""

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
    """Whether the process that does it was killed before so many changes: false where it has done all."""
    pid = os.fork()
    if pid == 0:
        try:
            KILLER.left, KILLER.folder = number, str(folder)
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # a test's process must not go on twice
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def assert_whole(settings: Settings) -> None:
    """Whoever reads any file now finds it whole, with its key, and signed by whom all believe."""
    folder = settings.home / SECRETS
    for leaf in certificates.leaves(settings):
        context = web_server_context(str(folder / leaf.file))  # refuses a key of another certificate
        assert isinstance(context, ssl.SSLContext)
        shown = x509.load_pem_x509_certificate((folder / leaf.file).read_bytes())
        by = next(each for each in believed(folder, leaf.ca) if each.subject == shown.issuer)
        shown.verify_directly_issued_by(by)
    for ca in (FRONT_DOOR, INNER):
        assert signer(folder, ca) in believed(folder, ca)
    server_context(folder / CA, folder / SERVER)
    revoked_serials(folder / CA, folder / REVOKED)


def announcing(home: Path) -> Settings:
    settings = Settings(home=home, tls=True)
    certificates.make_up(settings, now=ago(250))
    certificates.keep(settings, now=ago(5.5))
    return settings


def dropping(home: Path) -> Settings:
    """The former CA has signed nothing that counts."""
    settings = aged(home)
    certificates.keep(settings)
    for ca in (FRONT_DOOR, INNER):
        by = [row.serial for row in issued.of_home(home) if row.issuer != str(names(home, ca)[-1]) and ca.is_issuer(row.issuer)]
        certificates.revoke(home, by)
    return settings


def names(home: Path, ca: Authority) -> list[str]:
    return [succession.name_of(each) for each in believed(home / SECRETS, ca)]


@pytest.mark.parametrize("state", [announcing, aged, dropping])
def test_killed_between_any_two_steps_it_leaves_all_whole_and_the_next_one_ends_the_work(
    tmp_path: Path, state: Callable[[Path], Settings]
) -> None:
    state(tmp_path / "before")
    for number in count():
        settings = Settings(home=tmp_path / str(number), tls=True)
        shutil.copytree(tmp_path / "before", settings.home)
        if not killed_before_change(number, settings.home / SECRETS, lambda of=settings: certificates.keep(of)):  # type: ignore[misc]
            break
        assert_whole(settings)
        certificates.keep(settings)
        assert_whole(settings)
        assert certificates.overdue(settings) == []
        assert certificates.keep(settings) == []
        drafts = [file.name for file in (settings.home / SECRETS).glob(".*") if file.name != ".authority.lock"]
        assert drafts == []
    assert number > 4
