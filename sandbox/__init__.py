"""All of Manifold on one machine: the servers, the event tap in front of Mosquitto, a simulated fleet."""
