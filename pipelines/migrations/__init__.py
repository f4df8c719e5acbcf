"""Migrates tables made by an earlier release: `manifold lake migrate`.

Every table has a version: `Table.version` in `manifold.contracts.tables`, the property `manifold.schema-version` in the lake.
`pipelines.migrations.of_tables.STEPS` lists the steps from each version to the next. A new table has the newest version.

**Adding a step**

1. Change the table's definition in `manifold.contracts.tables`, and increment its `version`.
2. Append a step to the table's entry in `of_tables.STEPS`: `AddColumns`, `RenameColumn`, `WidenColumn`, `PartitionBy`,
   `SetProperties`. Write names, types and values out: definitions change later, steps do not. Never change a released step.
3. If this code works with a table that lacks the step, ingest keeps running, and `manifold doctor` reports that the step is due.
   If it does not (a column was renamed or widened), set the table's `oldest` to the new version: every job then stops at an older
   table with an error that names `manifold lake migrate`.
4. Add a test that creates the old table, with rows, and compares the migrated table with a new one.

**How a step is taken** (`migrate.py`): one commit changes the metadata and the version, and notes that the step is in progress
(`manifold.migrating.<step>`). Then an empty run with the new schema is published like an ingest: a run that began on the old
table is overtaken and starts again. A last commit removes the note. Each commit can be repeated: a kill between two of them, or
two concurrent migrations, do no harm.
"""
