"""The address of RabbitMQ and the secrets of the AMQP door, from the settings or as the sandbox generated them."""

from urllib.parse import urlencode

from manifold.contracts.signals.rights import OPERATOR
from manifold.runtime import secret_files
from manifold.settings import Settings
from manifold.settings.signals import accepted_of

USER = "manifold"  # the administrator of the embedded RabbitMQ; no service is this user


def shown_url(settings: Settings) -> str:
    """URL of RabbitMQ as the status tells it: of the embedded one without its user."""
    scheme = "amqps" if settings.tls else "amqp"
    return settings.signals_amqp_url.get_secret_value() or f"{scheme}://{settings.loopback}:{settings.amqp_port}"


def connection_url(settings: Settings, *, as_user: str = USER) -> str:
    """URL of RabbitMQ to connect to, with user and password; `as_user` is one of `manifold.contracts.signals.rights`.

    Where a setting says where RabbitMQ is, it says as whom, too; the operator may have one of its own.

    Raises:
        Permanent: the password of the embedded one cannot be read.
    """
    own = settings.signals_operator_url.get_secret_value() if as_user == OPERATOR else ""
    if url := own or settings.signals_amqp_url.get_secret_value():
        return url
    password = secret_files.read(settings.home, password_file(as_user))
    address = f"{as_user}:{password}@{settings.loopback}:{settings.amqp_port}/"
    return f"amqps://{address}?{urlencode(settings.local_client('cafile', ''))}" if settings.tls else f"amqp://{address}"


def password_file(user: str) -> str:
    """The name of the secret that is the password of a user of the embedded RabbitMQ."""
    return secret_files.AMQP_PASSWORD if user == USER else secret_files.OF_AMQP.format(user)


def hmac_secrets(settings: Settings) -> tuple[str, ...]:
    """The secrets with which a message may be signed, the current one first; none: no signature is asked for.

    Raises:
        Permanent: the file of the secret cannot be read.
    """
    current = settings.signals_hmac_secret.get_secret_value() or secret_files.read(settings.home, secret_files.HMAC)
    former = accepted_of(settings.signals_hmac_accepted.get_secret_value())
    return tuple(dict.fromkeys([current, *former] if current else former))
