"""Bringing the tables of an earlier release to their present definitions: `manifold lake migrate`.

Every table has a version (`Table.version` in `manifold.contracts.tables`; the table property `manifold.schema-version` in the
lake), and `pipelines.migrations.of_tables.STEPS` has the steps that lead from each version to the next.
A new table is made as it is defined, with the newest version, and needs none of them.

**Adding a step**

1. Change the table's definition in `manifold.contracts.tables`, and add one to its `version`.
2. Append a step to the table's line in `of_tables.STEPS`: `AddColumns`, `RenameColumn`, `WidenColumn`, `PartitionBy`,
   `SetProperties`, or a class of your own. Write names, types and values out: definitions change later, steps stay what they
   were. Never change or remove a step that was released.
3. Can this code work with a table that lacks the step? Ingest goes on with such a table, and `manifold doctor` says that the
   step is due. If it cannot (it was renamed, widened), set the table's `oldest` to the new version: who meets an older table
   stops with an error that names `manifold lake migrate`.
4. Add the table as it was to `tests/pipelines/old_lakes.py`: the tests migrate every release that is written out there, and
   compare with a new lake.

**How a step is taken** (`migrate.py`): one commit changes the metadata and the version, and notes that the step is under way
(`manifold.migrating.<step>`). Then a run of its own writes one snapshot to the table, that has the new schema, and is
published like an ingest's: whoever began before it, on the old table, is overtaken and does itself again. A last commit removes
the note. Each of these can be done again, so a kill between any two, or two migrations at once, does no harm.
"""
