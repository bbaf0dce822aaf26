"""A page and a summary from records: reading and merging files, computing what the report shows, and rendering it."""
