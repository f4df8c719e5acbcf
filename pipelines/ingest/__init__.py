"""Archive to lake: written to branches, judged, published."""
