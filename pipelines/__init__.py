"""Jobs that move rows from the archive into the lake and from the lake into the queues, with Spark.

Schedulers outside this package decide which job runs, and how often. Every job is idempotent: a second run, a concurrent run, or
a run after a kill adds nothing. Readers see all rows of a run or none. This package does not import services or the dispatcher;
only `campaigns.targets` publishes through the broker.
"""
