"""Prints the Maven repository that Spark's own resolver asks: that of DEFAULT_ARTIFACT_REPOSITORY, or Ivy's default."""

import os
import sys

from pyspark.java_gateway import launch_gateway

NAMED = "DEFAULT_ARTIFACT_REPOSITORY"


def main() -> None:
    """Print it."""
    repository = os.environ.get(NAMED)
    if not repository:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]  # pyspark has no types there
        repository = gateway.jvm.org.apache.ivy.plugins.resolver.IBiblioResolver.DEFAULT_M2_ROOT
        gateway.shutdown()
    sys.stdout.write(f"{repository}\n")


if __name__ == "__main__":
    main()
