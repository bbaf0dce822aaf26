"""A search for failing cases among problems that are in no table."""
