"""A search for cases that fail, among problems that nobody wrote down."""
