"""How services connect to the broker."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from manifold.settings.field import MqttUrl, Port, Secret
from manifold.settings.field import setting as _s
from manifold.settings.shared import SharedSettings

SERVICES_PORT = ":1884"  # port of the services' listener in infra/emqx


def _require_plain_prefix(prefix: str) -> str:
    has_wildcard = "+" in prefix or "#" in prefix
    if not prefix or prefix.strip("/") != prefix or has_wildcard:
        raise ValueError("must be one or more topic levels without + and #, not beginning or ending with /")
    return prefix


class MqttSettings(SharedSettings):
    """How services connect to the broker."""

    mqtt_url: MqttUrl = _s("", "where services find the broker; empty: mqtt://<host>:<mqtt_port>")
    mqtt_vehicle_url: MqttUrl = _s(
        "",
        "where vehicles find the broker, as `status` tells it; empty: mqtt_url, with 1883 where that has the services' port 1884",
    )
    mqtt_port: Port = _s(1883, "the front door for vehicles and platform: the event tap when embedded, EMQX when deployed")
    mqtt_services_port: Port = _s(
        1884, "the front door for services and publishers, where tls is set; else they share mqtt_port with the vehicles"
    )
    mqtt_username_recorder: str = _s("sdv-recorder", "user name of the recorder")
    mqtt_username_dispatcher: str = _s("sdv-dispatcher", "user name of the dispatchers")
    mqtt_username_publisher: str = _s("sdv-pub-console", "user name of `manifold send` and of the demo's platform")
    mqtt_username_campaigns: str = _s(
        "sdv-campaigns", "user name of console and campaigner where they publish orders to campaigns"
    )
    mqtt_username_api: str = _s("sdv-api", "user name of the API, which publishes orders to campaigns, and rewinds")
    mqtt_password: Secret = _s(SecretStr(""), "password of the services; empty: none is sent")
    mqtt_probe_username: str = _s(
        "", "client id and user name of the vehicle that `manifold doctor` plays; empty: one of chance, without a password"
    )
    mqtt_probe_password: Secret = _s(SecretStr(""), "password that belongs to mqtt_probe_username")
    mqtt_receive_maximum: Annotated[int, Field(gt=0, le=65535)] = _s(
        1000, "unacknowledged messages that a service lets the broker send"
    )
    mqtt_session_expiry_seconds: Annotated[int, Field(gt=0, le=(1 << 32) - 1)] = _s(
        3600, "how long the broker keeps a service's session while the service is away"
    )
    mqtt_shared: Annotated[str, Field(pattern="^(auto|on|off)$")] = _s(
        "auto",
        "shared subscriptions, for several replicas; auto: only where mqtt_url is set, because Mosquitto 2.0 shares no $ topics",
    )
    topic_prefix: Annotated[str, AfterValidator(_require_plain_prefix)] = _s(
        "agent", "first levels of the topic on which vehicles get their messages"
    )

    @property
    def mqtt(self) -> str:
        """URL of the broker for services."""
        if self.mqtt_url:
            return self.mqtt_url
        if self.tls:
            return f"mqtts://{self.host}:{self.mqtt_services_port}"
        return f"mqtt://{self.host}:{self.mqtt_port}"

    @property
    def mqtt_for_vehicles(self) -> str:
        """URL of the broker for vehicles."""
        if self.mqtt_vehicle_url:
            return self.mqtt_vehicle_url
        if self.tls and not self.mqtt_url:  # the sandbox's broker, where vehicles have their own port
            return f"mqtts://{self.host}:{self.mqtt_port}"
        if self.mqtt_url.endswith(SERVICES_PORT):
            return f"{self.mqtt_url.removesuffix(SERVICES_PORT)}:1883"
        return self.mqtt

    @property
    def shares_subscriptions(self) -> bool:
        """Whether services use shared subscriptions. Without them each replica gets every message, which is safe but wasteful."""
        if self.mqtt_shared == "auto":
            return bool(self.mqtt_url)  # not set for the sandbox's Mosquitto, which cannot share topics that begin with $
        return self.mqtt_shared == "on"
