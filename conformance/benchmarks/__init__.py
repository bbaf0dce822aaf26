"""Speed, of implementations and of the suite. Run with `tox -e bench`."""
