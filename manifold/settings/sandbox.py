"""Settings of the sandbox: what it starts, and the ports that only it has."""

from manifold.settings.field import Port
from manifold.settings.field import setting as _s
from manifold.settings.shared import SharedSettings


class SandboxSettings(SharedSettings):
    """What `make up` starts, and the ports that only the sandbox has."""

    broker_port: Port = _s(18830, "the embedded Mosquitto behind the tap")
    tap_port: Port = _s(9102, "HTTP of the event tap: /metrics, /healthz")
    airflow_port: Port = _s(8080, "the embedded Airflow")
    with_airflow: bool = _s(True, "`make up` starts Airflow; off: for quick trials, nothing is scheduled")
    with_signals: bool = _s(
        True, "`make up` starts the AMQP door, and RabbitMQ where signals_amqp_url names none; off: neither of them"
    )
    with_campaigns: bool = _s(True, "`make up` starts the campaigner, which carries out campaigns; off: it does not")
