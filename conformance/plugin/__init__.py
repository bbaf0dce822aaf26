"""The front end that is a plugin of pytest. Nothing else in the package imports it.

PYTEST_DONT_REWRITE, because `entry` is imported long before pytest knows that this is a plugin.
"""

pytest_plugins = ["conformance.plugin.entry", "conformance.plugin.hooks", "conformance.plugin.fixtures"]
