"""Reports of a run: from records to text and pages."""
