"""The rules for who may reach the HTTP of the services."""

from ipaddress import ip_address

from manifold.contracts.errors import Permanent

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`: an address, or `localhost`. Other names are not looked up."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def require_token(host: str, token: str, setting: str = "HOST") -> None:
    """Return if a face may listen there, where `setting` has put it.

    Raises:
        Permanent: others than this machine could reach it, and there is no token.
    """
    if not token and not is_loopback(host):
        raise Permanent(
            f"MANIFOLD_{setting}={host!r} is not loopback: whoever reaches it could read and command the services; "
            f"set MANIFOLD_HTTP_TOKEN, or leave MANIFOLD_{setting}={LOOPBACK}"
        )
