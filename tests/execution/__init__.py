"""Cases that are run, from outside and from inside."""
