"""Reads from the URL of Redis whether it names one server or a cluster."""

CLUSTER = "+cluster"


def split_redis_url(url: str) -> tuple[str, bool]:
    """The URL as the client library takes it, and whether it names a node of a Redis Cluster.

    `redis+cluster://host:port` and `rediss+cluster://host:port` name any node of a cluster; it tells of the others.
    """
    scheme, separator, rest = url.partition("://")
    return f"{scheme.removesuffix(CLUSTER)}{separator}{rest}", scheme.endswith(CLUSTER)
