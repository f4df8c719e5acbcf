"""Archive to lake: write each run to branches, audit it, publish it."""
