"""Access rules for the HTTP endpoints of the services."""

from ipaddress import ip_address

from manifold.contracts.errors import Permanent

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether a listener on `host` is reachable from this machine only: a loopback address, or `localhost`. No DNS lookups."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def require_token(host: str, token: str, setting: str = "HOST") -> None:
    """Check that an HTTP endpoint may listen on `host`, which is the value of the setting `MANIFOLD_<setting>`.

    Raises:
        Permanent: other machines could reach the endpoint, and `token` is empty.
    """
    if not token and not is_loopback(host):
        raise Permanent(
            f"MANIFOLD_{setting}={host!r} is not loopback: anyone who can reach it could read and control the services; "
            f"set MANIFOLD_HTTP_TOKEN, or leave MANIFOLD_{setting}={LOOPBACK}"
        )
