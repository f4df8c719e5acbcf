"""Archive to lake to queues, in Spark. What runs, and how often, is decided elsewhere.

Running any of it twice, concurrently, or after a kill changes nothing, and readers see a run whole or not at all. It knows
nothing of services, brokers, or the dispatcher.
"""
