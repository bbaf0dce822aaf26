"""A page, a summary, JUnit and CSV from records: reading and merging, what they amount to, and how it is shown."""
