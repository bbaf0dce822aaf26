"""Orders of summation, built from how many terms lie below the lowest common ancestor of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from conformance.reading.tree import Node, NoTreeError, built, described, drawn

LENGTH = 64


def chain(indices: Sequence[Node | int], group: int = 1) -> Node:
    first = max(2, group)
    total = Node(tuple(indices[:first]))
    for start in range(first, len(indices), group):
        total = Node((total, *indices[start : start + group]))
    return total


def halves(parts: Sequence[Node | int]) -> Node:
    while len(parts) > 2:
        parts = [Node(tuple(parts[place : place + 2])) for place in range(0, len(parts), 2)]
    return Node(tuple(parts))


def below(tree: Node) -> Callable[[int, int], int]:
    def count(first: int, second: int) -> int:
        node = tree
        while inner := [child for child in node.nodes if {first, second} <= {*child.leaves}]:
            node = inner[0]
        return len(node.leaves)

    return count


ALL = range(LENGTH)
TREES = {
    "one after another": (chain(ALL), 1, 1, ["0 + 1 + 2 + ... + 63"], 70),
    "one after another, the last one first": (chain(ALL[::-1]), 1, 1, ["62 + 63 + 61 + ... + 0"], 70),
    "one after another, in another order": (
        chain([5, 9, 2, *(term for term in ALL if term not in (5, 9, 2))]), 1, 1, ["5 + 9 + 2 + ... + 63"], 200,
    ),
    "pairwise": (halves(ALL), 32, 1, ["(((((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))) + ...) + ...) + ..."], 200),
    "4 partial sums of 16 terms, every 4th; each one after another; then in pairs": (
        halves([chain(ALL[lane::4]) for lane in range(4)]), 4, 1,
        [f"s{lane} = {lane} + {lane + 4} + {lane + 8} + ... + {lane + 60}" for lane in range(4)]
        + ["(s0 + s1) + (s2 + s3)"], 200,
    ),
    "4 partial sums of 16 terms, adjacent; each 4 at once; then one after another": (
        chain([chain(ALL[start : start + 16], 4) for start in range(0, 64, 16)]), 4, 4,
        [f"s{place} = [{t} {t + 1} {t + 2} {t + 3}] + [{t + 4} {t + 5} {t + 6} {t + 7}] + "
         f"[{t + 8} {t + 9} {t + 10} {t + 11}] + [{t + 12} {t + 13} {t + 14} {t + 15}]"
         for place, t in enumerate(range(0, 64, 16))] + ["((s0 + s1) + s2) + s3"], 300,
    ),
    "2 partial sums of 32 terms, adjacent; each one after another, the last one first; then one after another": (
        Node((chain(ALL[:32][::-1]), chain(ALL[32:][::-1]))), 2, 1,
        ["s0 = 30 + 31 + 29 + ... + 0", "s1 = 62 + 63 + 61 + ... + 32", "s0 + s1"], 200,
    ),
    "16 at once": (
        chain(ALL, 16), 1, 16,
        ["[0 1 2 ... 15] + [16 17 18 ... 31] + [32 33 34 ... 47] + [48 49 50 ... 63]"], 600,
    ),
    "32 at once": (chain(ALL, 32), 1, 32, ["[0 1 2 ... 31] + [32 33 34 ... 63]"], 600),
}  # fmt: skip


@pytest.mark.parametrize("words", TREES)
def test_trees_are_built_and_described(words: str):
    tree, partial_sums, group, picture, most = TREES[words]
    calls, right = 0, below(tree)

    def counted(first: int, second: int) -> int:
        nonlocal calls
        calls += 1
        return right(first, second)

    tree_read = built(LENGTH, counted)
    pairs = [(first, second) for second in ALL for first in range(second)]
    assert [below(tree_read)(*pair) for pair in pairs] == [right(*pair) for pair in pairs]
    assert (described(tree_read), drawn(tree_read)) == (words, picture)
    assert (len(tree_read.partial_sums), tree_read.group) == (partial_sums, group)
    assert calls <= most


def test_answers_of_no_tree_are_refused():
    with pytest.raises(NoTreeError):
        built(8, lambda first, second: 3)
    with pytest.raises(NoTreeError):
        built(8, lambda first, second: 9)
