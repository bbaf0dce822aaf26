"""Loads the plugins; nothing else belongs here."""

pytest_plugins = [
    "conformance.plugin.plugin",
    "conformance.plugin.timing",
    "conformance.plugin.progress",
    "conformance.reporting.memory_table",
    "conformance.plugin.training",
]
