"""The command line's own front end of a run."""
