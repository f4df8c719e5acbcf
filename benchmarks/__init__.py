"""Measurements against a named limit in the same run; `make bench` runs them all."""
