"""A folder of files: on a disk or in an object store, by its URL."""

from pyarrow import fs

from contracts.storage import S3

_S3_SCHEME = "s3://"


def open_storage(url: str, s3: S3) -> tuple[fs.FileSystem, str]:
    """The file system of `url` (`file://…` or `s3://bucket/…`) and the path of its root there. Touches nothing.

    Raises:
        ValueError: the URL is of no kind that is known.
    """
    if not url.startswith(_S3_SCHEME):
        filesystem, root = fs.FileSystem.from_uri(url)
        return filesystem, root.rstrip("/")
    options = {"region": s3.region, "access_key": s3.access_key, "secret_key": s3.secret_key}
    if s3.endpoint:
        scheme, _, address = s3.endpoint.rpartition("://")
        options |= {"endpoint_override": address, "scheme": scheme or "https"}
    return fs.S3FileSystem(**{name: value for name, value in options.items() if value}), url.removeprefix(_S3_SCHEME).rstrip("/")
