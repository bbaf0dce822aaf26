"""Sizes of a grouped matrix product: rows that are divided among groups, each of which has its own b.

It appears to the suite as a batch of products does, `conformance.operators.matmul.geometry`: columns and terms of each
group have numbers of their own. The rows are shared: a row of `a` has the terms of the one group that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar, NamedTuple

from conformance.layouts import A, B, Y
from conformance.operators.base import Tensor
from conformance.operators.descriptor import FLAG, Field
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.spatial import GeometryError

WEIGHTS = (1, 4, 7, 3, 6, 2, 5)
"""Shares of the rows that uneven groups have, in turn."""
TILES = (8, 16, 32, 64, 128)
"""Rows that a kernel may compute at once."""


class GroupedSizes(NamedTuple):
    """A product y[m, n] of m rows in groups, each with its own b[k, n], as `when=` gets it; `sizes` has the number of
    rows of each group."""

    m: int
    n: int
    k: int
    groups: int
    sizes: tuple[int, ...]


def divided(rows: int, groups: int, uneven: bool, empty: bool) -> tuple[int, ...]:
    """Return the number of rows of each group: by equal shares, or by `WEIGHTS`; if `empty`, the first, the last and
    every third group has none. A group ends where the shares up to its own do, rounded down."""
    has_none = [empty and (group % 3 == 0 or group == groups - 1) for group in range(groups)]
    turns = accumulate((not none for none in has_none), initial=0)
    shares = [
        0 if none else WEIGHTS[turn % len(WEIGHTS)] if uneven else 1
        for none, turn in zip(has_none, turns, strict=False)
    ]
    ends = [rows * share // max(1, sum(shares)) for share in accumulate(shares, initial=0)]
    return tuple(end - start for start, end in pairwise(ends))


@dataclass(frozen=True)
class GroupedGeometry(MatmulGeometry):
    """Sizes of one grouped product. Raises GeometryError for sizes that none can have.

    Tensors in canonical order: a [m, k], b [groups * n, k] and y [m, n].
    """

    PREFIX: ClassVar[str] = "grouped"
    FIELDS: ClassVar[dict[int, tuple[Field, ...]]] = {
        0: (
            Field("g", "groups", attribute="groups", least=2),
            Field("m", "rows of all groups", attribute="n"),
            Field("n", "columns", attribute="k", per_group=True),
            Field("k", "length of the sums", attribute="c", per_group=True),
            Field("uneven", "uneven division of the rows (0 or 1)", FLAG, "uneven", False),
            Field("empty", "division with empty groups (0 or 1)", FLAG, "empty", False),
        )
    }
    family: ClassVar[str] = "matmul_grouped"
    sizes: ClassVar[tuple[int, ...]]
    """Number of rows of each group; derived, so that it is not compared."""

    uneven: bool = False
    empty: bool = False

    def __post_init__(self) -> None:
        if self.groups < 2:
            raise GeometryError(f"g is {self.groups}; it must be at least 2: the product of one group is a matmul")
        if self.empty and self.groups < 3:
            raise GeometryError("of 2 groups, the first and the last, none would have rows; leave out empty1")
        super().__post_init__()
        columns, terms = self.k // self.groups, self.c // self.groups
        vars(self).update(
            x=Tensor(A, (self.n, terms), shared=True),
            filter=Tensor(B, (self.k, terms)),
            y=Tensor(Y, (self.n, columns), shared=True),
            sizes=divided(self.n, self.groups, self.uneven, self.empty),
        )

    @property
    def described(self) -> GroupedSizes:
        """Return the sizes of the product."""
        return GroupedSizes(self.n, self.k // self.groups, self.c // self.groups, self.groups, self.sizes)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield the rows of each group in a and y, and its rows in b."""
        ends, columns = [*accumulate(self.sizes, initial=0)], self.k // self.groups
        for group, (start, end) in enumerate(pairwise(ends)):
            yield slice(start, end), slice(group * columns, (group + 1) * columns)

    @property
    def further_sizes(self) -> dict[str, int]:
        """Return sizes beside m, n and k, by the words in which a condition names them."""
        return {
            "groups": self.groups,
            "groups without rows": self.sizes.count(0),
            "rows of the first group": self.sizes[0],
            "rows of the last group": self.sizes[-1],
            "rows of the largest group": max(self.sizes),
            "rows of the smallest group": min(self.sizes),
        }

    @property
    def further_features(self) -> set[str]:
        """Return features that follow from these sizes, for conditions."""
        features = {"a group without rows" if 0 in self.sizes else "rows in every group"}
        features.add("groups of one size" if len({*self.sizes}) == 1 else "groups of different sizes")
        for tile in (2, 4, *TILES):
            whole = all(size % tile == 0 for size in self.sizes)
            features.add(f"rows of {'every' if whole else 'some'} group {'' if whole else 'not '}a multiple of {tile}")
        return features
