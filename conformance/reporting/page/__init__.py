"""A page and a summary from records: reading and merging, what they amount to, and how it is shown."""
