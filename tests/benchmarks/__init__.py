"""Tests of what the benchmarks share; the benchmarks themselves are run by `make bench`."""
