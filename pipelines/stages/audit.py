"""Let a run continue if it has passed its audit, and hold back any other. No Spark: the stage `ingest` has audited it."""

import argparse
import json

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_run_id


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which run."""
    add_run_id(parser, required=True)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return the report's address and the number of warnings.

    Raises:
        Permanent: the run breaks rules, which the message names, or its current attempt was not audited.
    """
    from pipelines.catalog import open_lake
    from pipelines.ingest.audit import held_back, passed_already

    catalog, run_id = open_lake(settings), options.run_id
    passed = passed_already(catalog, settings, run_id)
    if passed is None:
        raise Permanent(held_back(catalog, settings, run_id))
    return json.dumps({"run_id": run_id, **passed})
