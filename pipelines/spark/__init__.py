"""How Spark is started: its configuration, jars, workers and session."""
