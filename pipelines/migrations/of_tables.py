"""The migration steps of each table, in the order of its versions: the first leads from version 1 to version 2."""

from manifold.contracts.tables import EVERY_TABLE
from pipelines.migrations.steps import Step

# No release has changed a table yet. A table's first step goes here as `STEPS[IDS.name] = (AddColumns(...),)`.
STEPS: dict[str, tuple[Step, ...]] = {table.name: () for table in EVERY_TABLE}
