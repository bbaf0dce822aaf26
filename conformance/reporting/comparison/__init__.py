"""What two benchmark runs say about each other: faster, slower, unchanged within a threshold, or inconclusive."""
