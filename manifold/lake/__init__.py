"""Access to the lake without Spark: catalog, commits, point reads, keys, reports. May import settings and contracts."""
