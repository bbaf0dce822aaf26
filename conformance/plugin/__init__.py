"""pytest wiring and the command line: outermost, nothing imports it.

PYTEST_DONT_REWRITE, because `entry` is imported long before pytest is told that this is a plugin.
"""

pytest_plugins = [
    "conformance.plugin.entry",
    "conformance.plugin.outcome",
    "conformance.plugin.session",
    "conformance.plugin.fixtures",
    "conformance.plugin.timing",
    "conformance.plugin.environment",
    "conformance.plugin.progress",
    "conformance.plugin.pace",
    "conformance.plugin.process",
]
