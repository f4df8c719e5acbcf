"""Settings of the campaigner, and of the DAGs about campaigns."""

from typing import Annotated

from pydantic import Field

from manifold.settings.field import Port, Positive
from manifold.settings.field import setting as _s
from manifold.settings.mqtt import MqttSettings


class CampaignerSettings(MqttSettings):
    """How campaigns are carried out."""

    campaigner_port: Port = _s(9106, "HTTP of the campaigner: /metrics, /healthz")
    campaigner_lease_seconds: Annotated[float, Field(ge=3, le=3600)] = _s(
        15, "how long after the death of the active campaigner another one waits before it takes over"
    )
    campaigns_open: Positive = _s(
        200, "campaigns that are carried out at once; later ones wait until one of those proposed before them is over"
    )
    campaign_approvals_schedule: str = _s(
        "*/5 * * * *", "cron expression (UTC) at which campaign_approvals looks who has to be asked; empty: only when triggered"
    )
    campaign_reports_schedule: str = _s(
        "37 5 * * *", "cron expression (UTC) of the DAG campaign_reports; empty: only when triggered"
    )
