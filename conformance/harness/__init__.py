"""The machinery around a verdict: implementations, devices, pytest, records."""
