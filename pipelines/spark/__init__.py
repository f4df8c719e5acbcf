"""Starts Spark: its configuration, jars, workers and session."""
