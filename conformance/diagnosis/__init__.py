"""Which known mistake explains a wrong output."""
