"""Jobs that look first, without Spark, and need it only if there is much to do."""

import argparse

from manifold.contracts.errors import Retryable


class NeedsSpark(Retryable):
    """There is more to do than one process should; nothing has happened yet."""


def add_without_spark(parser: argparse.ArgumentParser) -> None:
    """Add the option `--without-spark` of stages that need Spark only sometimes."""
    parser.add_argument("--without-spark", action="store_true", help="stop with exit status 4 where Spark is needed")
