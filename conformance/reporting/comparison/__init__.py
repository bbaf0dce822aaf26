"""Comparing two benchmark runs: what is faster, slower, unchanged within a threshold, or inconclusive."""
