"""All of Manifold on one machine: `platform` runs its servers and services, `fleet` simulates the vehicles, `tap` the events.

For development, tests and the demo. It only ends processes that it started, by process id. No product code imports it.
"""
