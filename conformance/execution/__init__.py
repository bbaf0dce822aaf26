"""One way to bind, call, synchronise and fetch; one way from whatever happens to a status."""
