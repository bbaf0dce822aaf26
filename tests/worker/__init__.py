"""What a kernel's process does."""
