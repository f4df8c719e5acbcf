"""Prints the URL of the Maven repository that Spark uses: the value of DEFAULT_ARTIFACT_REPOSITORY, or Ivy's default."""

import os
import sys

from pyspark.java_gateway import launch_gateway

VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"


def main() -> None:
    """Print the URL."""
    repository = os.environ.get(VARIABLE)
    if not repository:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]  # pyspark has no types there
        repository = gateway.jvm.org.apache.ivy.plugins.resolver.IBiblioResolver.DEFAULT_M2_ROOT
        gateway.shutdown()
    sys.stdout.write(f"{repository}\n")


if __name__ == "__main__":
    main()
