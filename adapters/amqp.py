"""Where RabbitMQ is, and the secrets of the AMQP door: from settings, or as the sandbox made them up."""

from adapters import secret_files
from contracts.settings import Settings
from contracts.signal_settings import accepted_of

USER = "manifold"  # of the embedded RabbitMQ


def shown_url(settings: Settings) -> str:
    """URL of RabbitMQ as the status tells it: of the embedded one without its user."""
    return settings.signals_amqp_url.get_secret_value() or f"amqp://{settings.loopback}:{settings.amqp_port}"


def connection_url(settings: Settings) -> str:
    """URL of RabbitMQ to connect to, with user and password.

    Raises:
        Permanent: the password of the embedded one cannot be read.
    """
    if url := settings.signals_amqp_url.get_secret_value():
        return url
    password = secret_files.read(settings.home, secret_files.AMQP_PASSWORD)
    return f"amqp://{USER}:{password}@{settings.loopback}:{settings.amqp_port}/"


def hmac_secrets(settings: Settings) -> tuple[str, ...]:
    """The secrets with which a message may be signed, the current one first; none: no signature is asked for.

    Raises:
        Permanent: the file of the secret cannot be read.
    """
    current = settings.signals_hmac_secret.get_secret_value() or secret_files.read(settings.home, secret_files.HMAC)
    former = accepted_of(settings.signals_hmac_accepted.get_secret_value())
    return tuple(dict.fromkeys([current, *former] if current else former))
