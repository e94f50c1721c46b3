"""Benchmarks: what forkrun costs, beside what else there is, measured in the same call."""
