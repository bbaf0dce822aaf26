"""A run, whatever front end shows it: its options, its tasks, the processes that verify these, and its results."""
