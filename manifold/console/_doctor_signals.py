"""The checks of `manifold doctor` for the AMQP door: RabbitMQ, signatures, and the key ring."""

import httpx

from manifold.console._diagnostic import Diagnostic
from manifold.contracts.errors import Permanent
from manifold.lake.key_ring import require_ring
from manifold.runtime.tls import verified
from manifold.sandbox.platform.rabbitmq import server_script
from manifold.settings import Settings

SIGNING_REMEDY = "set MANIFOLD_SIGNALS_HMAC_SECRET: without a secret whoever may publish to RabbitMQ is believed"
RING_REMEDY = "manifold signals keys new > ring, and MANIFOLD_SIGNALS_KEYS_FILE=ring: nothing is taken that cannot be sealed"


def check_rabbitmq(settings: Settings) -> Diagnostic:
    """Check that the AMQP door has a RabbitMQ: one that the settings name, or one that is installed here."""
    if settings.signals_amqp_url.get_secret_value():
        return Diagnostic("rabbitmq", True, "as signals_amqp_url says")
    script = server_script()
    remedy = "apt-get install rabbitmq-server, or MANIFOLD_WITH_SIGNALS=false: all but the AMQP door works without it"
    return Diagnostic("rabbitmq", script is not None, str(script) if script else "not installed", remedy)


def probe_signatures(settings: Settings) -> str:
    """Return the door's signature policy, `required`.

    Raises:
        ValueError: signatures are not required.
        httpx.HTTPError: the door does not answer.
    """
    trust = verified(settings, settings.signals)
    details = httpx.get(f"{settings.signals}/healthz", headers=settings.bearer, timeout=5, verify=trust).json()
    policy = str(details.get("signatures")) if isinstance(details, dict) else f"not known: {settings.signals} is no AMQP door"
    if policy != "required":
        raise ValueError(policy)
    return policy


def probe_ring(settings: Settings) -> str:
    """Return which key of the ring wraps (encrypts) new day keys. Day keys seal the signals.

    Raises:
        ValueError: the key ring is empty, or cannot be read.
    """
    try:
        key_id = require_ring(settings)
        return f"{key_id} wraps"
    except Permanent as exc:
        raise ValueError(str(exc)) from exc
