"""Signed results: packing them into an archive, and checking an archive that is not trusted."""
