"""Loads the plugins; nothing else belongs here."""

pytest_plugins = [
    "conformance.harness.plugin",
    "conformance.harness.timing",
    "conformance.harness.progress",
    "conformance.harness.memory_table",
    "conformance.training.plugin",
]
