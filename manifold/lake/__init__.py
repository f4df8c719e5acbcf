"""The lake without Spark: catalog, branches, snapshot ranges, point reads. May import settings and contracts."""
