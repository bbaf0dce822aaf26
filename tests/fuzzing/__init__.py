"""Bytes that somebody else wrote, at every edge where the suite reads some: `python -m tests.fuzzing --help`."""
