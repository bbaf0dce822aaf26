"""The order in which a kernel adds the terms of a sum, as a tree: read off it, described, drawn.

A large term M and its negative stand among equal small ones. A small term that is added to M before -M arrives is lost,
so that the number of lost terms tells how many leaves lie below the lowest common ancestor of the two (FPRev: Xie et
al., USENIX ATC 2025). Addition of several terms at once is a node with as many children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

DISTANCES = (1, 2, 3, 4, 8, 16, 32, 64)
"""Distances at which the rest of a large group is sampled, once two of its terms stand alone in it."""
ALL_PAIRS = 16
"""Size of a group up to which every pair in it is asked about."""
LINES = 8
"""Most partial sums that have a line each."""
SHOWN = 4
"""Most operands of an addition that are written out."""

Below = Callable[[int, int], int]
"""Returns the number of leaves below the lowest common ancestor of two terms."""


class NoTreeError(ValueError):
    """Raised where the answers belong to no tree."""


@dataclass(frozen=True)
class Node:
    """An addition. Its children are nodes, or terms by their index, in the order of their first terms."""

    children: tuple[Node | int, ...]

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """The terms below, in order."""
        return tuple(sorted(leaf for child in self.children for leaf in leaves_of(child)))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The children that are additions."""
        return tuple(child for child in self.children if isinstance(child, Node))

    @cached_property
    def depth(self) -> int:
        """Most additions between a term and the result."""
        return 1 + max((node.depth for node in self.nodes), default=0)

    @property
    def all(self) -> Iterator[Node]:
        """Yield the additions of the tree."""
        yield self
        for node in self.nodes:
            yield from node.all

    @property
    def way(self) -> list[Node]:
        """The additions from a term with most of them to the result, the lowest first."""
        way = [self]
        while nodes := way[-1].nodes:
            way.append(max(nodes, key=lambda node: node.depth))
        return way[::-1]

    @cached_property
    def is_chain(self) -> bool:
        """Tell if terms are added to one sum, one or several at a time."""
        return len(self.nodes) <= 1 and all(node.is_chain for node in self.nodes)

    @cached_property
    def is_balanced(self) -> bool:
        """Tell if two halves of adjacent terms are added, and their halves too."""
        sizes = [len(leaves_of(child)) for child in self.children]
        adjacent = self.leaves == tuple(range(self.leaves[0], self.leaves[-1] + 1))
        alike = len(sizes) == 2 and max(sizes) - min(sizes) <= 1
        return adjacent and alike and all(node.is_balanced for node in self.nodes)

    @cached_property
    def partial_sums(self) -> tuple[Node, ...]:
        """The largest chains."""
        return (self,) if self.is_chain else tuple(chain for node in self.nodes for chain in node.partial_sums)

    @property
    def chain(self) -> Iterator[Node]:
        """Yield the additions of a chain, the first one first."""
        for node in self.nodes:
            yield from node.chain
        yield self

    @cached_property
    def group(self) -> int:
        """Number of terms that every addition of the chains takes at once, but the last of each; 0 if there is none."""
        counts = {
            sum(isinstance(child, int) for child in addition.children)
            + (addition is first and len(first.children) == 2)
            for part in self.partial_sums
            for first in [next(part.chain)]
            for addition in [*part.chain][: max(1, len([*part.chain]) - 1)]
        }
        # the first addition of two terms is one of a term to another
        counts = {1 if count == 3 and self._is_binary else count for count in counts}
        return counts.pop() if len(counts) == 1 else 0

    @cached_property
    def _is_binary(self) -> bool:
        return all(len(node.children) == 2 for node in self.all)


def leaves_of(child: Node | int) -> tuple[int, ...]:
    """Return the terms below a child."""
    return child.leaves if isinstance(child, Node) else (child,)


def built(terms: int, below: Below) -> Node:
    """Return the tree of a sum. Raises NoTreeError, and what `below` does."""
    answers: dict[tuple[int, int], int] = {}

    def shared(first: int, second: int) -> int:
        pair = min(first, second), max(first, second)
        if pair not in answers:
            answers[pair] = below(*pair)
        return answers[pair]

    def node(members: Sequence[int], pivot: int) -> Node | int:
        """Return the node whose leaves are the members."""
        if len(members) == 1:
            return members[0]
        size, children, alone, rest = len(members), list[Node | int](), 0, list(members)
        while rest:
            pivot = pivot if pivot in rest else rest[0]
            candidates = [term for term in rest if term != pivot]
            if alone >= 2 and len(candidates) >= ALL_PAIRS:
                near = [term for place, term in enumerate(candidates, 1) if place in DISTANCES]
                candidates = candidates if any(shared(pivot, term) < size for term in near) else []
            inside = [pivot, *(term for term in candidates if shared(pivot, term) < size)]
            if any(shared(pivot, term) > size for term in candidates):
                raise NoTreeError("the answers belong to no tree")
            if not children and len(inside) == size:
                raise NoTreeError("the answers belong to no tree")
            alone += len(inside) == 1
            # where the pivot is added last, the sum may begin at the other end, and is asked from there
            is_last = len(inside) > 2 and len({shared(pivot, term) for term in inside if term != pivot}) == 1
            children.append(node(sorted(inside), max(inside) if is_last and pivot != max(inside) else pivot))
            rest = [term for term in rest if term not in inside]
        return Node(tuple(sorted(children, key=lambda child: leaves_of(child)[0])))

    members = [*range(terms)]
    last = terms - 1
    pivot = last if shared(0, 1) == terms and shared(last - 1, last) < terms else 0
    tree = node(members, pivot)
    assert isinstance(tree, Node)
    return tree


def described(tree: Node) -> str:
    """Return the order of summation in words."""
    parts = tree.partial_sums
    if len(parts) == 1:
        return _of_chain(tree)
    if tree.is_balanced:
        return "pairwise"
    sizes = sorted({len(part.leaves) for part in parts})
    numbers = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    steps = {_step(part) for part in parts}
    step = steps.pop() if len(steps) == 1 else 0
    which = "adjacent" if step == 1 else f"every {_ordinal(step)}" if step else ""
    how = {_of_chain(part) for part in parts}
    inside = how.pop() if len(how) == 1 else "in several ways"
    text = f"{len(parts)} partial sums of {numbers} terms{f', {which}' * bool(which)}; each {inside}"
    return text + _joined(tree, parts)


def _joined(tree: Node, parts: Sequence[Node]) -> str:
    """Return how the partial sums are added, in words that follow those of each."""
    place = {id(part): number for number, part in enumerate(parts)}

    def above(node: Node) -> Node | int:
        if id(node) in place:
            return place[id(node)]
        return Node(tuple(above(child) if isinstance(child, Node) else -1 for child in node.children))

    joined = above(tree)
    assert isinstance(joined, Node)
    if -1 in joined.leaves:
        return ""
    if joined.is_chain:
        return f"; then {_of_chain(joined)}"
    halves = all(len({len(leaves_of(child)) for child in node.children}) == 1 for node in joined.all)
    return "; then in pairs" if halves else ""


def _of_chain(chain: Node) -> str:
    additions = [*chain.chain]
    if any(len(addition.children) > 2 for addition in additions):
        return f"{chain.group} at once" if chain.group else "several at once"
    ends = [leaf for addition in additions for leaf in addition.children if isinstance(leaf, int)]
    ends[:2] = sorted(ends[:2], reverse=ends[-1] < ends[0])  # of the first two, the order cannot be known
    if ends == sorted(ends):
        return "one after another"
    return f"one after another, {'the last one first' if ends == sorted(ends, reverse=True) else 'in another order'}"


def _step(part: Node) -> int:
    steps = {after - before for before, after in zip(part.leaves, part.leaves[1:], strict=False)}
    return steps.pop() if len(steps) == 1 else 0


def _ordinal(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, 'th') }"


def drawn(tree: Node) -> list[str]:
    """Return a small picture: sums of indices of terms; those that are added at once stand in brackets."""
    parts = tree.partial_sums
    if 1 < len(parts) <= LINES and all(len(part.leaves) > 2 for part in parts):
        letters = {id(part): f"s{number}" for number, part in enumerate(parts)}
        return [*(f"s{number} = {_sum(part, {})}" for number, part in enumerate(parts)), _sum(tree, letters)]
    return [_sum(tree, {})]


def _sum(node: Node, names: dict[int, str]) -> str:
    """Return a sum in one line; the middle of a long one is left out."""
    if id(node) in names:
        return names[id(node)]
    if node.is_chain:
        parts = [_addition(addition) for addition in node.chain]
        first, *rest = parts
        words = [*first, *(word for part in rest for word in part)]
        return " + ".join(_short(words))
    words = list[str]()
    for place, child in enumerate(node.children):
        if isinstance(child, int):
            words.append(str(child))
        elif id(child) in names:
            words.append(names[id(child)])
        elif place and len(child.leaves) > SHOWN and not names:
            words.append("...")
        else:
            words.append(f"({_sum(child, names)})")
    return " + ".join(_short(words))


def _addition(addition: Node) -> list[str]:
    """Return the terms that an addition of a chain takes, those that it takes at once in brackets."""
    ends = [str(child) for child in addition.children if isinstance(child, int)]
    at_once = len(addition.children) > 2
    return [f"[{' '.join(_short(ends))}]"] if at_once and len(ends) > 1 else ends


def _short(words: list[str]) -> list[str]:
    return words if len(words) <= SHOWN else [*words[: SHOWN - 1], "...", words[-1]]
