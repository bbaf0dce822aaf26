"""Other people's libraries, each in an environment of its own, and a site of the results."""
