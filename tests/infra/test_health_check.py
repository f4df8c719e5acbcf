"""The image's health check command: which page it requests, and by which scheme."""

import runpy

import pytest

from tests.support.servers import ROOT

PAGE_OF = runpy.run_path(str(ROOT / "infra" / "image" / "bin" / "healthy"))["page_of"]
NAMED = {"MANIFOLD_HTTP_CERTIFICATE": "/etc/manifold-tls/tls.crt", "AIRFLOW__API__SSL_CERT": "/etc/manifold-tls/tls.crt"}


@pytest.mark.parametrize(
    ("command", "page", "with_certificate"),
    [
        ("python -m manifold.recorder", "://127.0.0.1:9101/healthz", "https"),
        ("python -m dispatcher --replica 2", "://127.0.0.1:9112/healthz", "https"),
        ("python -m manifold.signals", "://127.0.0.1:9105/healthz", "https"),
        ("python -m manifold.campaigns", "://127.0.0.1:9106/healthz", "https"),
        ("python -m manifold.api", "://127.0.0.1:9104/livez", "https"),
        ("/usr/bin/python3 /usr/local/bin/airflow api-server", "://127.0.0.1:8080/api/v2/version", "https"),
        ("/usr/bin/python3 /usr/local/bin/airflow scheduler", "://127.0.0.1:8974/health", "http"),
    ],
)
def test_the_health_check_uses_the_scheme_of_its_process(
    command: str, page: str, with_certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)
    assert PAGE_OF(command) == f"http{page}"
    for name, file in NAMED.items():
        monkeypatch.setenv(name, file)
    assert PAGE_OF(command) == f"{with_certificate}{page}"


def test_a_process_without_a_page_has_no_health_check() -> None:
    assert PAGE_OF("airflow dag-processor") is None
