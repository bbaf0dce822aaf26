"""Results that somebody signs for: packing them into an archive, and checking one that came from anybody."""
