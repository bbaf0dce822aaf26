"""Rules of the Beta 1 API on top of those in `rules`."""

from __future__ import annotations

BETA_RULES = {
    "mixed-generations": "a file imports nki or neuronxcc, not both",
    "index-affine": "an index expression is a sum of multiples of its variables",
    "mixed-index": "an access is made of slices or of index expressions, not of both",
    "mask": "a mask is made of comparisons of indices and fits the tile",
    "partition-first": "the first dimension of a tile is the partition",
    "partition-index": "on chip the partitions, and only they, follow the first axis of an access",
    "matmul-size": "the Tensor Engine takes 128 stationary and 512 moving elements a partition",
    "grid": "program_id names a dimension of the grid that the kernel was launched on",
}
