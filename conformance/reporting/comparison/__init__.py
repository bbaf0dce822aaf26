"""What two benchmark runs say about each other: faster, slower, no change, or inconclusive."""
