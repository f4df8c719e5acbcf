"""All of Manifold on one machine: `platform` runs its servers and services, `fleet` plays the vehicles."""
