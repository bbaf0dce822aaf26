"""Loads the plugins; nothing else belongs here."""

pytest_plugins = ["conformance.harness.plugin", "conformance.harness.timing", "conformance.training.plugin"]
