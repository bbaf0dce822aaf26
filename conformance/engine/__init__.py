"""A run, whatever front end shows it: what is asked for, which cases that is, who verifies them, what it came to."""
