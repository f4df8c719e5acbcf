"""All of Manifold on one machine: `platform` runs its servers and services, `fleet` plays the vehicles.

For development, tests and the demo. It promises to end by process id exactly what it started. No product code imports it.
"""
