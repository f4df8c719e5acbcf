"""Parses from a Redis URL whether it names one server or a cluster."""

CLUSTER = "+cluster"


def split_redis_url(url: str) -> tuple[str, bool]:
    """Return the URL for the client library, and whether it names a node of a Redis Cluster.

    `redis+cluster://host:port` and `rediss+cluster://host:port` name any node of a cluster, which reports the others.
    """
    scheme, separator, rest = url.partition("://")
    return f"{scheme.removesuffix(CLUSTER)}{separator}{rest}", scheme.endswith(CLUSTER)
