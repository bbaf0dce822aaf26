"""Loads the plugins; nothing else belongs here."""

pytest_plugins = [
    "conformance.plugin.plugin",
    "conformance.plugin.timing",
    "conformance.plugin.progress",
    "conformance.plugin.memory",
    "conformance.plugin.training",
]
