"""An alert that cannot be sent is logged, and never ends the job that sends it."""

import pytest
from pydantic import SecretStr

from manifold.runtime.alert import alert
from manifold.settings import Settings


@pytest.mark.parametrize("url", ["http://host:port", "http://[", "http://127.0.0.1:1", "nowhere"])
def test_an_alert_to_an_unusable_url_is_not_sent_and_raises_nothing(url: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings().model_copy(update={"alert_url": SecretStr(url)})

    assert not alert(settings, "held back", "a run is held back")

    assert "a run is held back (alert not sent: MANIFOLD_ALERT_URL" in caplog.text
