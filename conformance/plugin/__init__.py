"""The front end that is a plugin of pytest: outermost, nothing imports it.

PYTEST_DONT_REWRITE, because `entry` is imported long before pytest is told that this is a plugin.
"""

pytest_plugins = ["conformance.plugin.entry", "conformance.plugin.hooks", "conformance.plugin.fixtures"]
