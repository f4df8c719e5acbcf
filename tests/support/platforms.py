"""Settings of test platforms, and how their processes receive them."""

from manifold.settings import PREFIX, Settings, load_settings
from tests.support.servers import free_port

PORTS = (
    "mqtt_port",
    "mqtt_services_port",
    "broker_port",
    "redis_port",
    "airflow_port",
    "recorder_port",
    "tap_port",
    "dispatcher_port",
    "api_port",
    "signals_port",
    "campaigner_port",
    "amqp_port",
)


def platform_settings(home: object, **more: object) -> Settings:
    """Settings with a new home and free ports."""
    ports = {name: free_port() for name in PORTS}
    return load_settings(home=home, **({"with_airflow": False, "with_signals": False} | ports | more))


def variables(**settings: object) -> dict[str, str]:
    """The environment in which a process has these settings."""
    return {f"{PREFIX}{name.upper()}": str(value) for name, value in settings.items()}
