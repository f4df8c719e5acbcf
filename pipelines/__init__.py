"""Archive to lake to queues, in Spark: what runs and how often is decided elsewhere.

It promises that running any of it twice, at once, or after a kill changes nothing, and that readers see a run whole or not at
all. It knows nothing of doors, brokers, or the dispatcher.
"""
