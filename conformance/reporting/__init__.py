"""What a run says: from records to text and pages."""
