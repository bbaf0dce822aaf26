"""Vector code through public interfaces: `llvmlite.ir` writes it, `numba.extending.intrinsic` takes it into a kernel.

Numba's auto-vectoriser spills a register tile and has no masks, so the few loops that carry nearly all the arithmetic
are written as vector instructions.  An `Emitter` writes one of them for one element type; tensors reach it as
pointers, so nothing of numba's array representation is relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import config, types
from numba.extending import intrinsic

i1, i32, i64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


def _has_avx512() -> bool:
    """Return whether numba compiles for AVX-512: for this processor, unless NUMBA_CPU_FEATURES says otherwise."""
    if config.CPU_FEATURES is not None:
        return "+avx512f" in config.CPU_FEATURES.split(",")
    return bool(binding.get_host_cpu_features().get("avx512f"))


POINTER, SCALAR = "pointer", "scalar"
INT, INTS = types.int64, types.CPointer(types.int64)

WIDE = _has_avx512()
VECTOR_BYTES = 64 if WIDE else 32


def lanes_of(dtype: np.dtype) -> int:
    return VECTOR_BYTES // np.dtype(dtype).itemsize


class Emitter:
    """Emits instructions on whole vectors of one element type; offsets count elements."""

    def __init__(self, builder: ir.IRBuilder, element: types.Float) -> None:
        self.builder = builder
        self.bytes = element.bitwidth // 8
        self.lanes = VECTOR_BYTES // self.bytes
        self.element = ir.FloatType() if self.bytes == 4 else ir.DoubleType()
        self.suffix = f"v{self.lanes}f{element.bitwidth}"
        self.vector = ir.VectorType(self.element, self.lanes)
        self.zero = ir.Constant(self.vector, None)
        self.index = ir.VectorType(i32, self.lanes)
        self.iota = ir.Constant(self.index, list(range(self.lanes)))

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """Run the body for the indices 0 to count - 1."""
        builder, before = self.builder, self.builder.block
        head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        position = builder.phi(i64)
        position.add_incoming(i64(0), before)
        builder.cbranch(builder.icmp_signed("<", position, count), body, after)
        builder.position_at_end(body)
        yield position
        position.add_incoming(builder.add(position, i64(1)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    def store_apart(self, vector: Any, base: Any, offset: Any, count: Any) -> None:
        """Store up to `count` lanes, each to every second element."""
        even = ir.Constant(ir.VectorType(i1, self.lanes), [lane % 2 == 0 for lane in range(self.lanes)])
        for half in (0, self.lanes):
            spread = self.shuffle(vector, vector, [(half + lane) // 2 for lane in range(self.lanes)])
            mask = self.builder.and_(even, self.within_signed(half, self.product(count, 2)))
            self.store(spread, base, self.sum(offset, half), mask)

    def cases(self, key: Any, numbers: Iterable[int]) -> Iterator[int]:
        """Yield each of the numbers: code that is emitted after it runs where the key is that number."""
        after = self.builder.append_basic_block("after")
        switch = self.builder.switch(key, after)
        for number in numbers:
            block = self.builder.append_basic_block("case")
            switch.add_case(i64(number), block)
            self.builder.position_at_end(block)
            yield number
            self.builder.branch(after)
        self.builder.position_at_end(after)

    def variables(self, count: int, initial: Any) -> list[Any]:
        """Return registers that loops change."""
        with self.builder.goto_entry_block():
            variables = [self.builder.alloca(self.vector) for _ in range(count)]
        for variable in variables:
            self.builder.store(initial, variable)
        return variables

    def called(self, name: str, result: Any, *arguments: Any) -> Any:
        functions, kind = self.builder.module.globals, ir.FunctionType(result, [a.type for a in arguments])
        function = functions[name] if name in functions else ir.Function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.called(f"llvm.fma.{self.suffix}", self.vector, a, b, c)

    def sum(self, *terms: Any) -> Any:
        total = terms[0]
        for term in terms[1:]:
            total = self.builder.add(total, term if isinstance(term, ir.Value) else i64(term))
        return total

    def product(self, a: Any, b: Any) -> Any:
        return self.builder.mul(a, b if isinstance(b, ir.Value) else i64(b))

    def scalar(self, pointer: Any, offset: Any) -> Any:
        return self.builder.load(self.builder.gep(pointer, [offset]))

    def splat(self, scalar: Any) -> Any:
        kind = ir.VectorType(scalar.type, self.lanes)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, i32(0))
        return self.builder.shuffle_vector(first, first, ir.Constant(self.index, None))

    def pointer(self, base: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(base, [offset]), self.vector.as_pointer())

    def load(self, base: Any, offset: Any, mask: Any = None) -> Any:
        """Load a vector; where the mask is off, no element is read and the lane is zero."""
        if mask is None:
            return self.builder.load(self.pointer(base, offset), align=self.bytes)
        where = self.pointer(base, offset)
        name = f"llvm.masked.load.{self.suffix}.p0{self.suffix}"
        return self.called(name, self.vector, where, i32(self.bytes), mask, self.zero)

    def store(self, vector: Any, base: Any, offset: Any, mask: Any = None) -> None:
        if mask is None:
            self.builder.store(vector, self.pointer(base, offset), align=self.bytes)
            return
        where = self.pointer(base, offset)
        name = f"llvm.masked.store.{self.suffix}.p0{self.suffix}"
        self.called(name, ir.VoidType(), vector, where, i32(self.bytes), mask)

    def opaque(self, value: Any) -> Any:
        """Hide the value from the optimiser, which would keep an address for every tap up to date instead of adding the
        tap's offset to that of the row."""
        return self.builder.asm(ir.FunctionType(i64, [i64]), "", "=r,0", [value], False)

    def prefetch(self, base: Any, offset: Any) -> None:
        """Prefetch memory, which need not exist."""
        where = self.builder.bitcast(self.builder.gep(base, [offset]), ir.IntType(8).as_pointer())
        self.called("llvm.prefetch.p0i8", ir.VoidType(), where, i32(0), i32(3), i32(1))

    def within(self, start: Any, step: int, size: Any) -> Any:
        """Return which of start, start + step, ... lie in [0, size): one unsigned comparison tests both ends."""
        places = ir.Constant(self.index, [lane * step for lane in range(self.lanes)])
        places = self.builder.add(self.splat(self.builder.trunc(start, i32)), places)
        return self.builder.icmp_unsigned("<", places, self.splat(self.builder.trunc(size, i32)))

    def transposed(self, rows: list[Any]) -> list[Any]:
        """Transpose a square of vectors: bit by bit, the index of a row and that of a lane change places."""
        for bit in (1 << i for i in range(self.lanes.bit_length() - 1)):
            low = [lane if not lane & bit else self.lanes + (lane ^ bit) for lane in range(self.lanes)]
            high = [lane ^ bit if not lane & bit else self.lanes + lane for lane in range(self.lanes)]
            pairs = [(rows[i & ~bit], rows[i | bit], high if i & bit else low) for i in range(self.lanes)]
            rows = [self.shuffle(*pair) for pair in pairs]
        return rows

    def total(self, vector: Any) -> Any:
        """Return the sum of the lanes, halves added to halves."""
        width = self.lanes // 2
        while width:
            order = [lane ^ width for lane in range(self.lanes)]
            vector, width = self.builder.fadd(vector, self.shuffle(vector, vector, order)), width // 2
        return self.builder.extract_element(vector, i32(0))

    def source(self, base: Any, row: Any, start: Any, step: int, size: Any) -> tuple[Any, Any]:
        """Return the elements start, start + step, ... (step 1 or 2) of a row of `size`, and which of them it has; the
        others are zero and not read."""
        mask, first = self.within(start, step, size), self.sum(row, start)
        if step == 1:
            return self.load(base, first, mask), mask
        low = self.load(base, first, self.within(start, 1, size))
        high = self.load(base, self.sum(first, self.lanes), self.within(self.sum(start, self.lanes), 1, size))
        return self.shuffle(low, high, list(range(0, 2 * self.lanes, 2))), mask

    def scattered(self, base: Any, row: Any, start: Any, step: Any, size: Any, increment: Any) -> tuple[Any, Any]:
        """Return elements as `source` does, for any step and distance between the elements of a row, read one by
        one."""
        vector, mask = self.zero, ir.Constant(ir.VectorType(i1, self.lanes), None)
        for lane in range(self.lanes):
            place = self.sum(start, self.product(step, lane))
            inside = self.builder.icmp_unsigned("<", place, size)
            at = self.sum(row, self.product(self.builder.select(inside, place, i64(0)), increment))
            element = self.builder.select(inside, self.scalar(base, at), self.element(0))
            vector = self.builder.insert_element(vector, element, i32(lane))
            mask = self.builder.insert_element(mask, inside, i32(lane))
        return vector, mask

    def within_signed(self, start: int, size: Any) -> Any:
        """Return which of start, start + 1, ... are below the size, which may be negative."""
        places = ir.Constant(self.index, [start + lane for lane in range(self.lanes)])
        return self.builder.icmp_signed("<", places, self.splat(self.builder.trunc(size, i32)))

    def shuffle(self, a: Any, b: Any, order: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(self.index, order))


def emitted(*kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make write(emitter, *values), which returns an int64 or nothing, a function that kernels can call.

    `kinds` are the types of its arguments: POINTER for a pointer to tensor elements, SCALAR for an element; the first
    is always such a pointer.
    """

    def decorate(write: Callable[..., Any]) -> Any:
        def typed(typingctx: Any, *arguments: Any) -> Any:
            element = arguments[0].dtype
            by_kind = {POINTER: arguments[0], SCALAR: element}

            def codegen(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
                return write(Emitter(builder, element), *values) or i64(0)

            return types.int64(*(by_kind.get(kind, kind) for kind in kinds)), codegen

        names = ("typingctx", *(f"argument{i}" for i in range(len(kinds))))
        typed.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in names])  # type: ignore
        return intrinsic(typed)

    return decorate
