"""pytest wiring and the command line: outermost, nothing imports it."""
