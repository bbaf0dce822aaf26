"""The conformance suites: what `pytest` runs."""
