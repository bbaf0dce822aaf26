"""Loading NKI source, calling kernels, counting, and ending those that hang."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nki_emulator import EmulationError, counting, load
from nki_emulator.tests.sources import BFLOAT16, HEADER, indented, loaded
from nki_emulator.watchdog import Watchdog

COPY = """out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
nl.store(out, nl.load(a))
return out"""
PRODUCT = """acc = nl.ndarray((8, 4), dtype=nl.float32, buffer=nl.psum)
for k in range(steps):
    x = nl.load(a)
    nisa.nc_matmul(dst=acc, stationary=x, moving=x[:, 0:4], accumulate=(k > 0))
out = nl.ndarray((8, 4), dtype=nl.bfloat16, buffer=nl.shared_hbm)
nl.store(out, nl.copy(acc, dtype=nl.bfloat16))
return out"""
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def _kernel(body: str, parameters: str = "a") -> str:
    return f"{HEADER}def kernel({parameters}):\n{indented(body)}"


def _error(folder, source, *arguments, **options):
    with pytest.raises(EmulationError) as caught:
        loaded(folder, source, **options).kernel(*arguments)
    return caught.value


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("1 / 0", "kernel-error"),
        ("def f(:", "kernel-error"),
        ("import nki.nothing", "not-implemented"),
        ("nl.ndarray((2, 2), dtype=nl.float32)", "outside-kernel"),
    ],
)
def test_a_file_that_cannot_be_loaded(tmp_path, line, rule):
    error = _error(tmp_path, f"import nki\nimport nki.language as nl\n{line}\n")
    assert (error.line, error.rule) == (3, rule)


def test_the_environment_is_restored(tmp_path, monkeypatch):
    name = "NEURON_PLATFORM_TARGET_OVERRIDE"
    monkeypatch.setenv(name, "trn2")
    source = _kernel(COPY) + f"\n\nimport os\nos.environ['{name}'] = 'trn1'\nos.environ['CONFORMANCE_NEW'] = '1'\n"
    loaded(tmp_path, source)
    assert os.environ[name] == "trn2"
    assert "CONFORMANCE_NEW" not in os.environ


def test_no_such_target(tmp_path):
    with pytest.raises(ValueError, match="gen9"):
        loaded(tmp_path, _kernel(COPY), target="gen9")


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.py")


def test_the_text_of_an_error(tmp_path):
    error = _error(tmp_path, _kernel("a[7]"), VALUES)
    assert str(error).startswith(f"kernel kernel, {error.file.rpartition('/')[2]}:8: rule out-of-bounds: ")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rule, again.line) == (str(error), "out-of-bounds", 8)


def test_an_error_in_a_helper_has_the_line_of_the_helper(tmp_path):
    source = _kernel("helper(a)") + "\n\ndef helper(a):\n    return a[3:3]\n"
    assert _error(tmp_path, source, VALUES).line == len(source.splitlines())


def test_what_a_kernel_raises_is_the_cause(tmp_path):
    error = _error(tmp_path, _kernel("{}['missing']"), VALUES)
    assert error.rule == "kernel-error"
    assert isinstance(error.__cause__, KeyError)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.int32, np.uint8, np.int8, np.int16])
def test_arrays_come_back_as_they_went_in(tmp_path, dtype):
    values = VALUES.astype(dtype)
    found = loaded(tmp_path, _kernel(COPY)).kernel(values)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)
    assert not np.shares_memory(found, values)


def test_booleans_are_stored_as_bytes(tmp_path):
    found = loaded(tmp_path, _kernel(COPY)).kernel(VALUES > 5)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, VALUES > 5)


@pytest.mark.parametrize("given", [VALUES.T, VALUES[:, ::-1], np.broadcast_to(VALUES[:1], (3, 4))])
def test_strided_arguments(tmp_path, given):
    np.testing.assert_array_equal(loaded(tmp_path, _kernel(COPY)).kernel(given), given)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (VALUES.astype(np.float64), "dtype"),
        (VALUES.astype(np.int64), "dtype"),
        (np.float32(1), "argument"),
        (np.zeros((0, 4), np.float32), "argument"),
        (np.array(1, np.float32), "argument"),
        (object(), "argument"),
        ((VALUES, {1, 2}), "argument"),
        ([VALUES], "argument"),
        (([1, 1], VALUES), "argument"),
    ],
)
def test_arguments_that_no_kernel_takes(tmp_path, given, rule):
    assert _error(tmp_path, _kernel(COPY), given).rule == rule


def test_a_wrong_number_of_arguments(tmp_path):
    assert _error(tmp_path, _kernel(COPY), VALUES, VALUES).rule == "kernel-error"


def test_containers_numbers_and_defaults(tmp_path):
    body = """x = nl.multiply(nl.load(pair[0]), scale)
y = nl.load(options["b"])
out = nl.ndarray((3, 4), dtype=nl.float32, buffer=nl.shared_hbm)
if flag:
    nl.store(out, nl.add(x, y))
else:
    nl.store(out, x)
return [out]"""
    kernel = loaded(tmp_path, _kernel(body, "pair, options, scale=2.0, flag=True, name='n'")).kernel
    (found,) = kernel((VALUES, 3), {"b": VALUES, "unused": None})
    np.testing.assert_array_equal(found, 3 * VALUES)
    (found,) = kernel((VALUES, 3), {"b": VALUES}, scale=1, flag=False)
    np.testing.assert_array_equal(found, VALUES)


def test_one_jitted_function_calls_another_as_part_of_itself(tmp_path):
    inner = HEADER + "def inner(x):\n    return nl.multiply(x, 2.0)\n\n\n@nki.jit(mode='any')\n"
    body = COPY.replace("nl.load(a)", "inner(nl.load(a))")
    source = f"{inner}def kernel(a):\n{indented(body)}"
    with counting() as counters:
        found = loaded(tmp_path, source).kernel[1](VALUES)
    np.testing.assert_array_equal(found, 2 * VALUES)
    assert counters.instructions == {"dma_copy": 2, "tensor_scalar": 1}


def test_simulate_is_the_kernel_itself(tmp_path):
    source = _kernel(COPY) + "\n\nsimulated = nki.simulate(kernel)\n"
    np.testing.assert_array_equal(loaded(tmp_path, source).simulated(VALUES), VALUES)


@pytest.mark.parametrize(
    ("cores", "target", "rule"),
    [(2, "gen3", "not-implemented"), (2, "gen2", "cores"), (3, "gen3", "cores"), ((1, 2), "gen3", "cores")],
)
def test_several_cores_are_not_implemented(tmp_path, cores, target, rule):
    with pytest.raises(EmulationError) as caught:
        loaded(tmp_path, _kernel(COPY), target=target).kernel[cores](VALUES)
    assert (caught.value.rule, caught.value.page) == (rule, "NKI FAQ")


def test_arguments_are_left_alone(tmp_path):
    given = VALUES.copy()
    body = COPY.replace("nl.load(a)", "nl.multiply(nl.load(a), 3.0)")
    loaded(tmp_path, _kernel(body)).kernel(given)
    np.testing.assert_array_equal(given, VALUES)


WRITTEN = """t = nl.multiply(nl.load(a), 3.0)
nl.store(a[0:2], t[0:2])"""


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("made", [np.array, np.asfortranarray], ids=["rows", "columns"])
def test_an_argument_may_be_the_output(tmp_path, made, dtype):
    given = made(VALUES.astype(dtype))
    expected = np.concatenate([3 * VALUES[:2], VALUES[2:]]).astype(dtype)
    assert loaded(tmp_path, _kernel(WRITTEN)).kernel(given) is None
    np.testing.assert_array_equal(given, expected)
    (found,) = loaded(tmp_path, _kernel(WRITTEN + "\nreturn (a,)")).kernel(made(VALUES.astype(dtype)))
    np.testing.assert_array_equal(found, expected)


def test_an_array_that_is_read_only_is_not_written(tmp_path):
    given = VALUES.copy()
    given.flags.writeable = False
    error = _error(tmp_path, _kernel(WRITTEN), given)
    assert (error.rule, error.line) == ("input-written", 9)
    np.testing.assert_array_equal(given, VALUES)


def test_objects_are_arguments(tmp_path):
    source = _kernel(COPY.replace("nl.load(a)", "nl.multiply(nl.load(o.a), o.scales[1])"), "a, o") + (
        "\n\nclass Options(nl.NKIObject):\n    a: object\n    scales: object = None\n"
    )
    module = loaded(tmp_path, source)
    options = module.Options(VALUES, [1.0, 4.0])
    np.testing.assert_array_equal(module.kernel(VALUES, options), 4 * VALUES)
    assert options.a is VALUES


def test_no_target_in_the_decorator(tmp_path):
    source = _kernel(COPY).replace("@nki.jit", "@nki.jit(platform_target='trn1')")
    error = _error(tmp_path, source, VALUES)
    assert (error.rule, error.line, error.page) == ("jit-option", 6, "NKI Migration Guides")


def test_a_tensor_of_an_earlier_call_is_refused(tmp_path):
    body = "kept.append(nl.load(a))\nnl.copy(kept[0])\n" + COPY
    source = _kernel(body) + "\n\nkept = []\n"
    module = loaded(tmp_path, source)
    module.kernel(VALUES)
    with pytest.raises(EmulationError, match="stale-tensor") as caught:
        module.kernel(VALUES)
    assert caught.value.line == 9


def test_calls_of_several_threads_are_apart(tmp_path):
    module = loaded(tmp_path, _kernel(PRODUCT, "a, steps"))
    given = [np.full((5, 8), float(k), np.float32) for k in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda a: module.kernel(a, 3), given))
    for k, result in enumerate(found):
        np.testing.assert_array_equal(result, np.full((8, 4), 15 * k * k).astype(np.float32).astype(BFLOAT16))


def test_counters(tmp_path):
    values = np.ones((5, 8), np.float32)
    with counting() as outer, counting() as counters:
        loaded(tmp_path, _kernel(PRODUCT, "a, steps")).kernel(values, 3)
    assert counters == outer
    assert counters.dma_bytes_in == 3 * 5 * 8 * 4
    assert counters.dma_bytes_out == 8 * 4 * 2
    assert (counters.matmuls, counters.macs) == (3, 3 * 5 * 8 * 4)
    assert counters.instructions == {"dma_copy": 4, "nc_matmul": 3, "tensor_copy": 1}
    assert counters.psum_peak == 2048
    assert counters.sbuf_peak == 2 * 32, "x of one step and of the next"


def test_counters_of_several_calls_and_of_one_that_fails(tmp_path):
    module = loaded(tmp_path, _kernel(PRODUCT, "a, steps"))
    values = np.ones((5, 8), np.float32)
    with counting() as counters:
        module.kernel(values, 1)
        module.kernel(values, 2)
        with pytest.raises(EmulationError):
            module.kernel(values, 0)
    assert counters.matmuls == 3
    module.kernel(values, 1)
    assert counters.matmuls == 3


def test_the_end_of_a_block_leaves_the_others(tmp_path):
    module = loaded(tmp_path, _kernel(COPY))
    with counting() as outer:
        with counting() as inner:
            module.kernel(VALUES)
        module.kernel(VALUES)
    assert (inner.instructions["dma_copy"], outer.instructions["dma_copy"]) == (2, 4)


def test_a_repeated_read_counts_each_time(tmp_path):
    body = """t = nl.ndarray((4, 6), dtype=nl.float32)
nisa.dma_copy(dst=t, src=a.ap([[0, 4], [1, 6]]))
out = nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=t)
return out"""
    with counting() as counters:
        found = loaded(tmp_path, _kernel(body)).kernel(np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(found, np.tile(np.arange(6), (4, 1)))
    assert counters.dma_bytes_in == 4 * 6 * 4


def test_an_instruction_limit(tmp_path):
    source = _kernel("while True:\n    nisa.memset(dst=t, value=0)").replace(
        "    while", "    t = nl.load(a)\n    while"
    )
    error = _error(tmp_path, source, VALUES, instructions=1000)
    assert (error.rule, error.line) == ("instruction-limit", 10)
    assert loaded(tmp_path, _kernel(COPY), instructions=2).kernel(VALUES).shape == (3, 4)
    assert _error(tmp_path, _kernel(COPY), VALUES, instructions=1).rule == "instruction-limit"


@pytest.mark.parametrize("body", ["while True:\n    pass", "x = nl.load(a)\nwhile True:\n    x[0:1]"])
def test_a_time_limit(tmp_path, body):
    error = _error(tmp_path, _kernel(body), VALUES, seconds=0.2)
    assert error.rule == "time-limit"
    assert error.line >= 8
    np.testing.assert_array_equal(loaded(tmp_path, _kernel(COPY)).kernel(VALUES), VALUES)


@pytest.mark.parametrize(
    "body",
    [
        "h = nl.ndarray((1048576, 4096), dtype=nl.float32, buffer=nl.private_hbm)",
        "kept = []\nwhile True:\n    kept.append(nl.ndarray((4096, 65536), dtype=nl.float32, buffer=nl.hbm))",
    ],
)
def test_a_kernel_that_allocates_without_end(tmp_path, body):
    error = _error(tmp_path, _kernel(body), VALUES)
    assert (error.rule, error.line) == ("memory-limit", 7 + len(body.splitlines()))


def test_a_kernel_that_fills_the_memory_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr("nki_emulator.loader.MEMORY", 50_000_000)
    error = _error(tmp_path, _kernel("kept = []\nwhile True:\n    kept.append((1, 2.5, 'text'))"), VALUES)
    assert error.rule == "memory-limit"
    assert error.line >= 9


def test_memory_of_the_device_is_given_back(tmp_path):
    body = "for i in range(20):\n    h = nl.ndarray((4096, 65536), dtype=nl.float32, buffer=nl.hbm)\n" + COPY
    np.testing.assert_array_equal(loaded(tmp_path, _kernel(body)).kernel(VALUES), VALUES)


def test_a_time_limit_outside_the_main_thread(tmp_path):
    found = []
    worker = threading.Thread(
        target=lambda: found.append(_error(tmp_path, _kernel("while True:\n    pass"), VALUES, seconds=0.2))
    )
    worker.start()
    worker.join()
    assert [error.rule for error in found] == ["time-limit"]


def test_a_time_limit_does_not_fire_after_the_kernel_is_done():
    """However late the timer comes."""
    guard = Watchdog(3600)
    with guard:
        pass
    guard._fire()
    for _ in range(1000):
        pass


def test_memory_is_given_back_between_calls(tmp_path):
    body = "big = nl.zeros((3, 40000), dtype=nl.float32)\n" + COPY
    module = loaded(tmp_path, _kernel(body))
    for _ in range(3):
        module.kernel(VALUES)


def test_the_same_file_for_two_targets(tmp_path):
    body = COPY.replace("nl.store", "t = nl.ndarray((128, 52000), dtype=nl.float32)\nnl.store")
    error = _error(tmp_path, _kernel(body), VALUES, target="gen2")
    assert error.rule == "sbuf-capacity"
    np.testing.assert_array_equal(loaded(tmp_path, _kernel(body), target="gen3").kernel(VALUES), VALUES)


def test_dataclasses_of_a_kernel_file(tmp_path):
    source = _kernel("t = Tiling(4)\n" + COPY.replace("nl.load(a)", "nl.multiply(nl.load(a), t.width)")) + (
        "\n\nclass Tiling(nl.NKIObject):\n    def __init__(self, width):\n        self.width = width\n"
    )
    np.testing.assert_array_equal(loaded(tmp_path, source).kernel(VALUES), 4 * VALUES)
