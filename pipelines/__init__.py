"""Archive to lake to queues, in Spark: what runs and how often is decided elsewhere; running any of it twice changes nothing."""
