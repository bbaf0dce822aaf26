"""pytest wiring and the command line: outermost, nothing imports it."""

pytest_plugins = [
    "conformance.plugin.outcome",
    "conformance.plugin.session",
    "conformance.plugin.fixtures",
    "conformance.plugin.timing",
    "conformance.plugin.progress",
]
