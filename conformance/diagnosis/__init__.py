"""Diagnosis of wrong results: the mistake that explains them, where a kernel makes it, and how its sums are added."""
