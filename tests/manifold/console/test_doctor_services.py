"""The doctor's look at services, where another program uses their ports."""

from pathlib import Path

import pytest

from manifold.console._doctor import _check_services
from manifold.settings import Settings
from tests.support.other_program import other_program


@pytest.mark.parametrize("body", [b"5", b"null", b"[1]", b'"healthy"', b"<html>"])
def test_another_program_on_a_port_of_a_service_is_reported(body: bytes, tmp_path: Path) -> None:
    with other_program(body) as program:
        port = program.port
        settings = Settings(home=tmp_path, recorder_port=port, signals_port=port, api_port=port, with_airflow=False)
        results = {result.check: result for result in _check_services(settings)}

    for check in ("recorders", "direct enqueue", "signatures of signals"):
        assert not results[check].passed
        assert results[check].remedy
