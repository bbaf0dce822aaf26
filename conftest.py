"""Loads the plugin; nothing else belongs here."""

pytest_plugins = ["conformance.plugin"]
