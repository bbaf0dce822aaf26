"""What implementations do to the process that they run in: by accident, as shipped libraries have done, or on purpose.

Each is a right kernel with lines at the top of its file or in its call. What a run must say of its four cases stands
beside it: `error`, `fail`, `pass`, or `broken` for a file that cannot be used; several words where several occur. What
changes nothing but its own process passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.kit import source

HEAD = """
import atexit, builtins, ctypes, gc, json, os, resource, signal, subprocess, sys, threading, time, traceback
import numpy as np

calls = 0
kept = []
libc = ctypes.CDLL(None)
libc_with_lock = ctypes.PyDLL(None)
"""


@dataclass(frozen=True)
class Misbehaviour:
    said: str
    body: str = ""
    head: str = ""
    declares: str = ""
    reason: str = ""
    """What a record that is no pass must say, if that is known."""

    def file(self, name: str) -> str:
        body = f"global calls\n    calls += 1\n    {self.body}\n    return y"
        return source(name, body, head=HEAD + self.head, declares=self.declares)


def error(body: str, reason: str, **more: str) -> Misbehaviour:
    return Misbehaviour("error", body, reason=reason, **more)


def harmless(body: str = "", head: str = "") -> Misbehaviour:
    return Misbehaviour("pass", body, head)


def broken(head: str, reason: str) -> Misbehaviour:
    return Misbehaviour("broken", head=head, reason=reason)


HANGS, CRASHED = "no answer within", "crashed: its process "
FORK = "child = os.fork()\n    if child == 0: "

MISBEHAVIOURS: dict[str, Misbehaviour] = {
    # crashes
    "segfault": error("ctypes.string_at(0)", CRASHED + "was ended by SIGSEGV at "),
    "kills-itself": error("os.kill(os.getpid(), signal.SIGKILL)", CRASHED + "was ended by SIGKILL"),
    "double-free": error("p = libc.free; p.argtypes = [ctypes.c_void_p]; p(0x10)", CRASHED + "was ended by SIG"),
    "segfault-with-child": error(FORK + "time.sleep(1000)\n    ctypes.string_at(0)",
                                 CRASHED + "was ended by SIGSEGV at "),
    "python-stack": error("conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)",
                          "raised RecursionError"),
    "crashes-later": Misbehaviour("error pass", "if calls == 3: os.abort()", reason=CRASHED + "was ended by SIGABRT"),
    # exits
    "exits-1": error("os._exit(1)", CRASHED + "exited with status 1"),
    "system-exit": error("sys.exit(0)", "raised SystemExit: 0"),
    "execs": error("os.execv('/bin/true', ['true'])", CRASHED),
    "exits-in-thread": error("threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(1)", CRASHED),
    "exits-when-deleted": Misbehaviour("error pass", "if calls == 2: D()",
                                       "class D:\n    def __del__(self): os._exit(0)",
                                       reason=CRASHED + "exited with status 0"),
    # hangs
    "sleeps": error("time.sleep(1000)", HANGS),
    "sleeps-with-lock": error("libc_with_lock.sleep(1000)", HANGS),
    "waits-for-child": error("subprocess.run(['sleep', '1000'])", HANGS),
    "stops": error("os.kill(os.getpid(), signal.SIGSTOP)", HANGS),
    "blocks-signals": error("signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(1000)", HANGS),
    "hangs-in-when": error("", HANGS, declares=", when=lambda p: time.sleep(1000)"),
    "hangs-in-message": error("raise type('E', (Exception,), {'__str__': lambda self: time.sleep(1000)})()", HANGS),
    # imports
    "import-exits-0": broken("os._exit(0)", CRASHED + "exited with status 0"),
    "import-sys-exit": broken("sys.exit(0)", "SystemExit: 0"),
    "import-hangs": broken("time.sleep(1000)", HANGS),
    "import-bad-message": broken("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})()", "cannot be shown"),
    "import-surrogate": broken("raise ValueError('\\ud800 \\0')", "ValueError"),
    "import-atexit": harmless(head="atexit.register(os._exit, 0)"),
    "import-thread": harmless(head="threading.Thread(target=time.sleep, args=(1000,)).start()"),
    "import-process": harmless(head="subprocess.Popen(['sleep', '1000'], start_new_session=True)"),
    "import-folder": harmless(head="os.chdir('/')"),
    "import-pytest": broken("import pytest", "imports pytest in "),
    "import-reference": broken("try: from conformance.operators import OPERATORS\nexcept ImportError: pass",
                               "imports conformance.operators.table in "),
    "import-judge": broken("try: import conformance.judge\nexcept ImportError: pass", "imports conformance.judge in "),
    "import-pytest-past-guard": broken("del sys.meta_path[0]\nimport pytest", "pytest/__init__"),
    "import-pytest-and-clear": broken("try: import pytest\nexcept ImportError:\n"
                                      "    [one.clear() for one in gc.get_objects() if type(one) is list and\n"
                                      "     'imports pytest' in str(one[:1])]", "imports pytest in "),
    "import-pytest-and-hush": broken("os.dup2(os.open('/dev/null', 1), sys.meta_path[0]._findings)\n"
                                     "try: import pytest\nexcept ImportError: pass", "closes what its guard"),
    "import-pytest-in-child": broken("if os.fork() == 0: import pytest\nos.wait()", "imports pytest in "),
    # what looks for its judge
    "knows-pytest": Misbehaviour("fail", "y = y if 'pytest' in sys.modules or '_pytest' in sys.modules else y + 1"),
    "knows-stack": Misbehaviour("fail", "y = y if 'pytest_pyfunc_call' in str(traceback.extract_stack()) else y + 1"),
    "knows-environment": Misbehaviour("fail", "y = y if any('PYTEST' in name for name in os.environ) else y + 1"),
    "asks-check": Misbehaviour("fail", "import conformance\n    try: conformance.check(conv_forward, 'n1')\n"
                               "    except RuntimeError: pass", reason="calls conformance.check in "),
    # patches
    "patches-numpy": Misbehaviour("fail", "y = y + 1",
                                  "np.abs = np.absolute = lambda a, *_, **__: a * 0\nnp.array_equal = lambda *_: True"),
    "patches-builtins": Misbehaviour("error", head="builtins.all = builtins.any = lambda _: True"),
    "patches-clock": harmless("time.perf_counter = time.monotonic = lambda: 0.0"),
    "patches-stdout": harmless("sys.stdout = sys.stderr = None"),
    "patches-json": harmless(head="json.dumps = json.loads = None"),
    "recursion-limit": harmless("sys.setrecursionlimit(60)"),
    "trace": harmless("sys.settrace(lambda *_: None)"),
    "excepthook": harmless("sys.excepthook = threading.excepthook = None"),
    "no-collector": harmless("gc.disable(); gc.freeze()"),
    "clears-environment": harmless("os.environ.clear()"),
    # floating-point modes, which a behaviour check finds
    "rounds-up": harmless("libc.fesetround(0x800)"),
    "raises-everywhere": harmless("np.seterr(all='raise')"),
    # descriptors
    "closes-all": error("os.closerange(0, 1000)", CRASHED),
    "closes-standard": harmless("[os.close(d) for d in range(3) if calls == 1]"),
    "floods": harmless("os.write(1, b'x' * (8 << 20)); os.write(2, b'y' * (8 << 20))"),
    "does-not-block": harmless("[_unblock(d) for d in range(500)]",
                               "def _unblock(d):\n    try: os.set_blocking(d, False)\n    except OSError: pass"),
    "leaks-files": harmless("kept.extend(open('/dev/null') for _ in range(100))"),
    "sends-nonsense": error("[s for s in range(3, 500) if _sent(s)]", CRASHED,
                            head="def _sent(d):\n    try: os.write(d, b'\\xff' * 64)\n    except OSError: pass"),
    "sends-answers": error("for server in servers[:1]: server._send(wire.Reply(value=server._encoded(\n"
                           "        call.Audited(call.Result(y)))))",
                           CRASHED + "sent an answer that nobody had asked for",
                           head="from conformance.worker import call, wire\n"
                           "servers = [one for one in gc.get_objects() if type(one).__name__ == 'Server']"),
    # signals
    "alarm": error("signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(1)", CRASHED + "was ended by SIGALRM"),
    "interrupts-group": error("os.killpg(0, signal.SIGINT); time.sleep(0.1)", "raised KeyboardInterrupt"),
    "terminates-group": error("os.killpg(0, signal.SIGTERM); time.sleep(0.1)", CRASHED + "was ended by SIGTERM"),
    "ignores-signals": harmless("[signal.signal(s, signal.SIG_IGN) for s in (2, 6, 15)]"),
    # exceptions
    "keyboard-interrupt": error("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    "bad-message": error("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})()",
                         "raised E: (its message cannot be shown: ZeroDivisionError)"),
    "surrogate": error("raise ValueError('\\ud800\\0\\x1b[2J')", "raised ValueError"),
    "long-name": error("raise type('E' * 100000, (BaseException,), {})", "raised EEE"),
    # threads, children, memory
    "endless-thread": harmless("threading.Thread(target=time.sleep, args=(1000,)).start()"),
    "fork-returns-twice": harmless("os.fork()"),
    "daemon": harmless(FORK + "os.setsid(); os.fork() or time.sleep(1000); os._exit(0)"),
    "stray": harmless("subprocess.Popen(['sleep', '1000'], env={}, start_new_session=True)"),
    "zombies": harmless("[os.fork() or os._exit(0) for _ in range(5)]"),
    "memory-without-end": error("while True: kept.append(np.ones(1 << 26))", ""),
    "too-much-at-once": error("np.empty(1 << 50)", "raised MemoryError"),
    # where nothing is left to write the exception down with, its process ends with it
    "memory-limit": error("resource.setrlimit(resource.RLIMIT_AS, (1, 1)); np.ones(1 << 24)", "MemoryError"),
    "file-size-limit": error("resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))", "raised OSError"),
    # results
    "lying-length": error("return type('T', (tuple,), {'__len__': lambda self: 10 ** 30})((y, y))", ""),
    "iterates-forever": error("return type('T', (tuple,), {'__iter__': lambda self: iter(int, 1)})((y,))", ""),
}  # fmt: skip
