"""Object storage access, as one value for the archive, the lake, and Spark."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class S3:
    """An S3-compatible store. Empty fields mean AWS itself, and its default credential chain (role, profile, variables)."""

    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)

    def for_iceberg(self) -> dict[str, str]:
        """Return the catalog properties for PyIceberg (`s3.region`) and for Iceberg's S3FileIO (`client.region`)."""
        properties = {
            "s3.endpoint": self.endpoint,
            "s3.region": self.region,
            "client.region": self.region,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.path-style-access": "true" if self.endpoint else "",
        }
        return {name: value for name, value in properties.items() if value}


AWS = S3()
