"""Migrates tables made by an earlier release: `manifold lake migrate`.

Every table has a version: `Table.version` in `manifold.contracts.tables`, the property `manifold.schema-version` in the lake.
`pipelines.migrations.of_tables.STEPS` lists the steps from each version to the next. A new table has the newest version.

**Adding a step**

1. Change the table's definition in `manifold.contracts.tables`, and increment its `version`.
2. Append a step to the table's entry in `of_tables.STEPS`: `AddColumns`, `RenameColumn`, `WidenColumn`, `PartitionBy`,
   `SetProperties`. Write names, types and values as literals, because a definition that the step refers to may change later.
   Never change a released step.
3. If the new code also works with a table on which the step was not taken, ingest keeps running, and `manifold doctor` reports
   that the step is due. If the new code does not work with such a table (a column was renamed or widened), set the table's
   `oldest` to the new version: every job then stops at an older table with an error that names `manifold lake migrate`.
4. Add a test that creates the old table, with rows, and compares the migrated table with a new one.

**How a step is taken** (`migrate.py`): the first commit changes the metadata and the version, and sets the property
`manifold.migrating.<step>`, which marks the step as in progress. Then an empty run with the new schema is published like an
ingest: a run that began on the old table is overtaken and starts again. The last commit removes the property. Each commit can be
repeated, so a kill between two commits, or two concurrent migrations, do no harm.
"""
