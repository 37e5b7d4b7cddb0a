"""Hostile cells: code that breaks outputs, errors, threads, signals, files and parts of the interpreter.

A cell consists of up to three pieces, drawn with a seed; the last may raise, hang, or end its process.
"""

from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass
from string import Template
from typing import Literal, TypeAlias

from mhnb.types import Outcome

__all__ = ["FAMILIES", "PIECES", "HostileCell", "Piece", "draw_hostile_cell"]

Family: TypeAlias = Literal["outputs", "errors", "threads", "signals", "closes", "patches"]
FAMILIES: tuple[Family, ...] = ("outputs", "errors", "threads", "signals", "closes", "patches")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a hostile cell. In its code, `$n` is a number below 1,000 and `$tag` names the cell."""

    name: str
    family: Family
    code: str
    raises: str = ""
    """Class name of the error that it raises; empty if it succeeds."""
    allowed_outcomes: tuple[Outcome, ...] = ("ok",)
    """How the cell may end on a rank that runs the piece."""
    timeout_s: float | None = None
    """The cell's timeout, for a piece that does not end by itself."""
    undo: str = ""
    """Code for the next cell that reverts what the user sees of the piece, as the user would have to."""
    may_break_later_pieces: bool = False
    """Whether later pieces of the same cell may fail because of this one."""


@dataclass(frozen=True, slots=True)
class HostileCell:
    """A cell, and its expected results."""

    tag: str
    source: str
    pieces: tuple[str, ...]
    families: frozenset[Family]
    raises: tuple[str, ...]
    """Class name of the error on each rank; empty if the rank succeeds."""
    allowed_outcomes: tuple[tuple[Outcome, ...], ...]
    """How the cell may end on each rank."""
    timeout_s: float | None
    undo: str


def _raising(name: str, code: str, error: str) -> Piece:
    return Piece(name, "errors", code, raises=error, allowed_outcomes=("error",))


_HUNG: tuple[Outcome, ...] = ("interrupted",)

PIECES: tuple[Piece, ...] = (
    # -- outputs
    Piece("many lines", "outputs", "for i in range($n * 10): print('line', i)"),
    Piece("a long line", "outputs", "print('x' * $n * 1_000)"),
    Piece("no newline", "outputs", "import sys; sys.stdout.write('$tag' * $n)"),
    Piece("blanks", "outputs", "print(' ' * $n * 100 + '|')"),
    Piece("control characters", "outputs", "print(''.join(map(chr, range(32))) * 3)"),
    Piece(
        "escape sequences",
        "outputs",
        "print('\\x1b[31mred\\x1b[1A\\x1b[2K\\x1b[999;999Hfar\\x1b[?25l\\x1b[6n\\x1b]0;title\\x07')",
    ),
    Piece("cut escape", "outputs", "import sys; sys.stdout.write('\\x1b['); sys.stdout.flush(); print('31mlate')"),
    Piece("carriage returns", "outputs", "for i in range($n): print(f'\\rstep {i}', end='')"),
    Piece("lone surrogates", "outputs", "print('\\ud800', '\\udfff$n')"),
    Piece(
        "bytes that are no text",
        "outputs",
        "import contextlib, os\nwith contextlib.suppress(OSError): os.write(1, bytes(range(256)) * 4)",
    ),
    Piece("stderr beside stdout", "outputs", "import sys\nfor i in range(20): print(i); print(i, file=sys.stderr)"),
    Piece(
        "html that is not closed",
        "outputs",
        "from IPython.display import HTML, display\n"
        "for text in ('<!--', '<textarea>', '<style>', '</div></div>', '<title>', '<b'): display(HTML(text))",
    ),
    Piece(
        "a script",
        "outputs",
        "from IPython.display import HTML, Javascript, display\n"
        "display(HTML('<script>alert($n)</script>'), Javascript('1'))",
    ),
    Piece(
        "an image of odd size",
        "outputs",
        "from IPython.display import Image, display\n"
        "display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + bytes(40), format='png', width='50%', height=None))",
    ),
    Piece(
        "unknown types",
        "outputs",
        "from IPython.display import display\n"
        "display({'application/x-$tag': {'a': [1, None]}, 'text/plain': 'plain'}, raw=True)",
    ),
    Piece(
        "metadata that is none",
        "outputs",
        "from IPython.display import display\n"
        "display({'text/plain': 'p', 'text/html': '<i>p</i>'}, raw=True, metadata={'text/html': 7, 'x': {'y': ()}})",
    ),
    Piece(
        "updates",
        "outputs",
        "from IPython.display import display\nh = display('first', display_id=True)\nfor i in range(50): h.update(i)",
    ),
    Piece(
        "clear_output",
        "outputs",
        "from IPython.display import clear_output\nfor i in range(50): print(i); clear_output(wait=bool(i % 2))",
    ),
    Piece("many displays", "outputs", "from IPython.display import display\nfor i in range(300): display(i)"),
    Piece(
        "a repr that raises",
        "outputs",
        "class Bad:\n"
        "    def __repr__(self): raise ValueError('repr $tag')\n"
        "from IPython.display import display\n"
        "display(Bad())",
    ),
    Piece(
        "a repr that is no text",
        "outputs",
        "class Odd:\n"
        "    def _repr_html_(self): return 7\n"
        "    def _repr_png_(self): return 'x'\n"
        "    def __repr__(self): return 'odd'\n"
        "from IPython.display import display\n"
        "display(Odd())",
    ),
    Piece(
        "a subprocess",
        "outputs",
        "import subprocess; _ = subprocess.run(['sh', '-c', 'echo out; echo err >&2; exit 3'])",
    ),
    Piece("C stdio", "outputs", "import ctypes; _ = ctypes.CDLL(None).puts(b'from C $tag')"),
    Piece(
        "nested bars",
        "outputs",
        "from tqdm import tqdm\nfor i in tqdm(range(3)):\n    for j in tqdm(range(3), leave=False): pass",
    ),
    Piece("a warning", "outputs", "import warnings; warnings.warn('careful $tag' * 50)"),
    Piece("logging", "outputs", "import logging; logging.getLogger('$tag').error('logged %s', 'x' * $n)"),
    # -- errors
    _raising("a plain error", "raise ValueError('$tag')", "ValueError"),
    _raising("a long message", "raise RuntimeError('$tag' * 20_000)", "RuntimeError"),
    _raising("a message of many lines", "raise RuntimeError('\\n' * 3_000 + '$tag')", "RuntimeError"),
    _raising("no arguments", "raise KeyError", "KeyError"),
    _raising(
        "a str that raises",
        "class Mute(Exception):\n    def __str__(self): raise TypeError('no')\nraise Mute('$tag')",
        "Mute",
    ),
    _raising(
        "a str that is no text", "class Number(Exception):\n    def __str__(self): return 7\nraise Number", "Number"
    ),
    _raising(
        "a repr that is no text",
        "class Number(Exception):\n    def __repr__(self): return 7\nraise Number('$tag')",
        "Number",
    ),
    _raising(
        "a class that lies",
        "class Liar(Exception):\n    __class__ = property(lambda self: int)\nraise Liar('$tag')",
        "Liar",
    ),
    _raising(
        "a class that raises",
        "class Shy(Exception):\n    @property\n    def __class__(self): raise OSError('no')\nraise Shy('$tag')",
        "Shy",
    ),
    _raising(
        "attributes that raise",
        "class Closed(Exception):\n    def __getattribute__(self, name): raise OSError(name)\nraise Closed('$tag')",
        "Closed",
    ),
    _raising(
        "a name that is no text",
        "class Meta(type):\n"
        "    __name__ = property(lambda cls: 7)\n"
        "class Nameless(Exception, metaclass=Meta): pass\n"
        "raise Nameless('$tag')",
        "Nameless",
    ),
    _raising(
        "a cause that raises",
        "class Root(Exception):\n    @property\n    def __cause__(self): raise OSError('no')\nraise Root('$tag')",
        "Root",
    ),
    _raising(
        "a cycle of causes",
        "a, b = ValueError('a'), ValueError('b')\na.__context__, b.__context__ = b, a\nraise a",
        "ValueError",
    ),
    _raising(
        "a long chain",
        "e = None\nfor i in range(200):\n    n = ValueError(str(i)); n.__cause__ = e; e = n\nraise e",
        "ValueError",
    ),
    _raising("odd notes", "e = ValueError('$tag')\ne.__notes__ = [7, 'x' * 100_000, None]\nraise e", "ValueError"),
    _raising("notes that are no list", "e = ValueError('$tag')\ne.__notes__ = 7\nraise e", "ValueError"),
    _raising("a group", "raise ExceptionGroup('$tag', [ValueError(i) for i in range(300)])", "ExceptionGroup"),
    _raising("deep recursion", "def deep(n): return deep(n + 1)\ndeep(0)", "RecursionError"),
    _raising("wrong syntax", "exec('a b $tag')", "SyntaxError"),
    _raising("a syntax error by hand", "raise SyntaxError('$tag', ('nowhere', -3, 10**9, None))", "SyntaxError"),
    _raising(
        "an assertion on a value",
        "assert {i: 'x' * 100 for i in range($n)} == 1, list(range(10_000))",
        "AssertionError",
    ),
    _raising("out of a generator", "def g():\n    yield 1\n    raise LookupError('$tag')\nlist(g())", "LookupError"),
    _raising("a traceback cut off", "e = ValueError('$tag')\ne.__traceback__ = None\nraise e", "ValueError"),
    _raising("an unencodable message", "raise ValueError('\\ud800$tag')", "ValueError"),
    _raising("its own interrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    _raising("its own exit", "raise SystemExit($n)", "SystemExit"),
    _raising("a generator's exit", "raise GeneratorExit('$tag')", "GeneratorExit"),
    _raising("a file that is missing", "open('/no/such/$tag')", "FileNotFoundError"),
    _raising("memory", "raise MemoryError('$tag')", "MemoryError"),
    _raising("cancelled", "import asyncio\nraise asyncio.CancelledError('$tag')", "CancelledError"),
    # -- threads
    Piece(
        "a thread that prints late",
        "threads",
        "import threading\nt = threading.Timer(0.05, print, ['late']); t.start(); t.join()",
    ),
    Piece(
        "a thread that raises",
        "threads",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    ),
    Piece(
        "a daemon that stays",
        "threads",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    ),
    Piece(
        "threads that print",
        "threads",
        "import threading\n"
        "ts = [threading.Thread(target=lambda k=k: [print(k, j) for j in range(50)]) for k in range(5)]\n"
        "for t in ts: t.start()\n"
        "for t in ts: t.join()",
    ),
    Piece(
        "a pool",
        "threads",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: print(sum(pool.map(lambda v: v * v, range(100))))",
    ),
    Piece(
        "a thread in a lock",
        "threads",
        "import threading\n"
        "lock = threading.Lock(); lock.acquire()\n"
        "threading.Thread(target=lock.acquire, daemon=True).start()",
    ),
    Piece(
        "a task left behind",
        "threads",
        "import asyncio\n"
        "async def forever():\n"
        "    while True: await asyncio.sleep(0.01)\n"
        "task = asyncio.ensure_future(forever())\n"
        "await asyncio.sleep(0.02)",
    ),
    Piece(
        "a task that raises",
        "threads",
        "import asyncio\n"
        "async def fail(): raise ValueError('task $tag')\n"
        "task = asyncio.ensure_future(fail())\n"
        "await asyncio.sleep(0)",
    ),
    Piece(
        "the excepthook of threads",
        "threads",
        "import threading\n"
        "threading.excepthook = lambda _: 1 / 0\n"
        "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
        undo="import threading; threading.excepthook = threading.__excepthook__",
    ),
    Piece(
        "a fork",
        "threads",
        "import os, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(0)\n"
        "_ = os.waitpid(pid, 0)",
    ),
    Piece(
        "a process of its own",
        "threads",
        "import subprocess\np = subprocess.Popen(['sleep', '60'], start_new_session=True); p.kill(); _ = p.wait()",
    ),
    # -- signals
    Piece(
        "a handler of its own",
        "signals",
        "import os, signal\n"
        "heard = []\n"
        "_ = signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))\n"
        "os.kill(os.getpid(), signal.SIGUSR2)\n"
        "assert heard",
    ),
    Piece(
        "an alarm",
        "signals",
        "import signal, time\n"
        "_ = signal.signal(signal.SIGALRM, lambda *_: print('alarm'))\n"
        "_ = signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "time.sleep(0.03)",
    ),
    Piece(
        "an alarm that raises",
        "signals",
        "import signal, time\n"
        "def ring(*_): raise TimeoutError('$tag')\n"
        "_ = signal.signal(signal.SIGALRM, ring)\n"
        "_ = signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "time.sleep(60)",
        raises="TimeoutError",
        allowed_outcomes=("error",),
    ),
    Piece(
        "a child's end",
        "signals",
        "import signal, subprocess\n"
        "old = signal.signal(signal.SIGCHLD, lambda *_: None)\n"
        "_ = subprocess.run(['true'])\n"
        "_ = signal.signal(signal.SIGCHLD, old)",
    ),
    Piece(
        "signals blocked",
        "signals",
        "import signal\n"
        "old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n"
        "_ = signal.pthread_sigmask(signal.SIG_SETMASK, old)",
    ),
    Piece(
        "an interrupt to itself",
        "signals",
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
        raises="KeyboardInterrupt",
        allowed_outcomes=("error", "interrupted"),
    ),
    Piece(
        "sleeps too long", "signals", "import time; time.sleep(600)", raises="*", allowed_outcomes=_HUNG, timeout_s=1.0
    ),
    Piece("spins", "signals", "while True: pass", raises="*", allowed_outcomes=_HUNG, timeout_s=1.0),
    Piece(
        "waits for a thread",
        "signals",
        "import threading\nt = threading.Thread(target=threading.Event().wait, daemon=True); t.start(); t.join()",
        raises="*",
        allowed_outcomes=_HUNG,
        timeout_s=1.0,
    ),
    Piece(
        "awaits what never comes",
        "signals",
        "import asyncio\nawait asyncio.Event().wait()",
        raises="*",
        allowed_outcomes=_HUNG,
        timeout_s=1.0,
    ),
    Piece(
        "handles its interrupt",
        "signals",
        "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('saved $tag')\nraise ValueError('after')",
        raises="*",
        allowed_outcomes=("interrupted", "error"),
        timeout_s=1.0,
    ),
    # -- closes
    Piece("stdout closed", "closes", "import sys; sys.stdout.close()"),
    Piece(
        "stdout detached",
        "closes",
        "import sys\ntry: sys.stdout.detach()\nexcept Exception as error: print(type(error).__name__)",
    ),
    Piece(
        "stdout gone",
        "closes",
        "import sys\nkept_, sys.stdout = sys.stdout, None",
        undo="import sys; sys.stdout = kept_",
    ),
    Piece(
        "stdout swapped",
        "closes",
        "import io, sys\nkept, sys.stdout = sys.stdout, io.StringIO()\nprint('into the void')\nsys.stdout = kept",
    ),
    Piece("stderr closed", "closes", "import sys; sys.stderr.close()"),
    # An earlier cell may have closed them.
    Piece(
        "descriptors closed",
        "closes",
        "import contextlib, os\nwith contextlib.suppress(OSError): os.close(0 if $n % 3 else 2)",
    ),
    Piece("descriptor 1 closed", "closes", "import contextlib, os\nwith contextlib.suppress(OSError): os.close(1)"),
    Piece(
        "descriptor 1 moved",
        "closes",
        "import os\n"
        "if not os.path.exists('/proc/self/fd/1'): os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"
        "kept = os.dup(1); null = os.open(os.devnull, os.O_WRONLY)\n"
        "os.dup2(null, 1); os.close(null); os.dup2(kept, 1); os.close(kept)",
    ),
    Piece(
        "the folder removed",
        "closes",
        "import os, tempfile\nhome_ = os.getcwd(); gone_ = tempfile.mkdtemp(); os.chdir(gone_); os.rmdir(gone_)",
        undo="import os; os.chdir(home_)",
    ),
    Piece(
        "the environment cleared",
        "closes",
        "import os\nkept_ = dict(os.environ); os.environ.clear()",
        undo="import os; os.environ.update(kept_)",
    ),
    Piece("the loop stopped", "closes", "import asyncio; asyncio.get_event_loop().stop()", may_break_later_pieces=True),
    Piece("its own process", "closes", "import os; os.kill(os.getpid(), 9)", raises="*", allowed_outcomes=("died",)),
    Piece("exits at once", "closes", "import os; os._exit($n % 200)", raises="*", allowed_outcomes=("died",)),
    # -- patches
    Piece(
        "os.getpid", "patches", "import os; os.getpid = lambda: -1", undo="import os, posix; os.getpid = posix.getpid"
    ),
    Piece(
        "time",
        "patches",
        "import time\ntime.time = time.monotonic = time.perf_counter = lambda: -1.0",
        undo="import importlib, time; importlib.reload(time)",
    ),
    Piece(
        "builtins.open",
        "patches",
        "import builtins\nopen_, builtins.open = builtins.open, None",
        undo="import builtins; builtins.open = open_",
        may_break_later_pieces=True,
    ),
    Piece(
        "builtins.print",
        "patches",
        "import builtins\nprint_, builtins.print = builtins.print, (lambda *a, **k: None)",
        undo="import builtins; builtins.print = print_",
    ),
    Piece(
        "builtins.len",
        "patches",
        "import builtins\nlen_, builtins.len = builtins.len, (lambda _: 7)\nbuiltins.len = len_",
    ),
    Piece(
        "json.dumps",
        "patches",
        "import json\ndumps_, json.dumps = json.dumps, None",
        undo="import json; json.dumps = dumps_",
        may_break_later_pieces=True,
    ),
    Piece(
        "sys.displayhook",
        "patches",
        "import sys\nhook_, sys.displayhook = sys.displayhook, (lambda value: None)",
        undo="import sys; sys.displayhook = hook_",
    ),
    Piece("sys.excepthook", "patches", "import sys; sys.excepthook = None"),
    Piece("sys.settrace", "patches", "import sys; sys.settrace(lambda *_: None); sys.settrace(None)"),
    Piece(
        "a low recursion limit",
        "patches",
        "import sys\nlimit_ = sys.getrecursionlimit(); sys.setrecursionlimit(limit_ // 4)",
        undo="import sys; sys.setrecursionlimit(limit_)",
        may_break_later_pieces=True,
    ),
    Piece(
        "warnings as errors",
        "patches",
        "import warnings; warnings.simplefilter('error')",
        undo="import warnings; warnings.resetwarnings()",
        may_break_later_pieces=True,
    ),
    Piece("no collection", "patches", "import gc; gc.disable()", undo="import gc; gc.enable()"),
    Piece(
        "rich tracebacks",
        "patches",
        "import rich.traceback\n"
        "shows_ = {n: v for n, v in vars(get_ipython()).items() if 'showtraceback' in n or 'showsyntaxerror' in n}\n"
        "_ = rich.traceback.install()",
        # Attributes of the shell itself, as opposed to its class, are those that were installed.
        undo="for name_ in ('_showtraceback', 'showtraceback', 'showsyntaxerror'):\n"
        "    vars(get_ipython()).pop(name_, None)\n"
        "vars(get_ipython()).update(shows_)",
    ),
    Piece(
        "a handler of IPython",
        "patches",
        "get_ipython().set_custom_exc((ZeroDivisionError,), lambda *a, **k: print('mine'))",
        undo="get_ipython().set_custom_exc((), None)",
    ),
    Piece("plain tracebacks", "patches", "get_ipython().run_line_magic('xmode', 'Minimal')", undo="%xmode Context"),
    Piece(
        "names of the namespace",
        "patches",
        "str_ = str; list = dict = type = None",
        undo="del list, dict, type",
        may_break_later_pieces=True,
    ),
    Piece(
        "threading.Thread",
        "patches",
        "import threading\nthread_, threading.Thread = threading.Thread, None",
        undo="import threading; threading.Thread = thread_",
        may_break_later_pieces=True,
    ),
    Piece(
        "signal.signal",
        "patches",
        "import signal\nsignal_, signal.signal = signal.signal, None",
        undo="import signal; signal.signal = signal_",
        may_break_later_pieces=True,
    ),
)


def draw_hostile_cell(rng: random.Random, tag: str, ranks: int = 2) -> HostileCell:
    """Draw a cell. It prints `begin TAG` first."""
    lasting = sorted(rng.sample([piece for piece in PIECES if not piece.raises], rng.randrange(3)), key=_order)
    ending = rng.choice([piece for piece in PIECES if piece.raises]) if not lasting or rng.random() < 0.5 else None
    if ending and ending.name == "a cycle of causes":
        # rich itself follows the cycle endlessly.
        lasting = [piece for piece in lasting if piece.name != "rich tracebacks"]
    chosen = [*lasting, ending] if ending else lasting
    raises, ends = [""] * ranks, [_OK] * ranks
    lines, undo = [f"print('begin {tag}')"], list[str]()
    is_broken = False
    for piece in chosen:
        only_rank = rng.randrange(ranks) if rng.random() < 0.3 else None
        lines.append(_on_rank(_fill(piece, tag, rng), only_rank))
        for rank in range(ranks):
            if only_rank in (None, rank):
                raises[rank], ends[rank] = piece.raises, piece.allowed_outcomes
            if is_broken:
                raises[rank], ends[rank] = "*", (*ends[rank], "ok", "error")
        if piece.undo:
            undo.insert(0, _on_rank(piece.undo, only_rank))
        is_broken = is_broken or piece.may_break_later_pieces
    return HostileCell(
        tag,
        "\n".join(lines),
        tuple(piece.name for piece in chosen),
        frozenset(piece.family for piece in chosen),
        tuple(raises),
        tuple(ends),
        ending.timeout_s if ending else None,
        "\n".join(undo),
    )


_OK: tuple[Outcome, ...] = ("ok",)


def _order(piece: Piece) -> int:
    # A piece that closes or replaces something comes after the pieces that may need it.
    return ("outputs", "threads", "signals", "errors", "closes", "patches").index(piece.family)


def _fill(piece: Piece, tag: str, rng: random.Random) -> str:
    return Template(piece.code).safe_substitute(n=rng.randrange(1, 1000), tag=tag)


def _on_rank(code: str, rank: int | None) -> str:
    return code if rank is None else f"if RANK == {rank}:\n{textwrap.indent(code, '    ')}"


# -- sessions: cells that hang, are interrupted, accepted, restarted and replayed


@dataclass(frozen=True, slots=True)
class HostileStep:
    """A cell of a session. It may fail in any way, but costs no rank, and no later cell gets a wrong number from it."""

    name: str
    source: str
    guard: str
    timeout_s: float | None = None


SESSION_SETUP = """
import threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
RANK, devices = jax.process_index(), np.array(jax.devices())
mesh, pair_mesh = Mesh(devices, ('x',)), Mesh([d for d in devices if d.process_index < 2], ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
pair_rows = NamedSharding(pair_mesh, P('x'))
def place(sharding, n): return jax.make_array_from_callback((n,), sharding, lambda i: np.arange(n)[i], dtype=np.int32)
x, v = place(rows, 6), place(pair_rows, 4)
total, top = jax.jit(jnp.sum, out_shardings=whole), jax.jit(jnp.max, out_shardings=whole)
pair = jax.jit(lambda a: a + 0 * a.sum())
def call(run):
    like = jax.ShapeDtypeStruct((6 // devices.size,), np.int32)
    body = lambda a: jax.lax.psum(jax.pure_callback(run, like, a), 'x')
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P('x'), out_specs=P(), check_vma=False))
def picky(a):
    if RANK == victim: raise ValueError('no')
    return np.asarray(a)
def sleepy(a):
    if RANK == victim: time.sleep(600)
    return np.asarray(a)
kept = []
int(total(x)), int(top(x))
"""
"""Names that every step may use, on three ranks; ranks 0 and 1 also share a program of their own."""

PROBE = "[int(f(x)) for f in (total, top)]"
RIGHT_ANSWER = "[15, 5]"
"""What the probe shows on each rank that launches."""

_ENDLESS = {
    "Python code": "if RANK == $who: time.sleep(600)",
    "a wait at the gate": "if RANK == $who: time.sleep(600)\nint(total(x))",
    "a collective": "if RANK == $who: int(total(x))\nelse: time.sleep(600)",
    "a collective alone": "if RANK == $who: int(total(x))",
    "a dropped launch": "if RANK == $who:\n    total(x)\n    time.sleep(600)",
    "a callback that sleeps": "victim = $who\nint(call(sleepy)(x)[0])",
    "a loop": "while True: y = total(x)",
    "a loop of two ranks": "while RANK < 2: v = pair(v)",
    "an error of one rank": "if RANK == $who: raise ValueError('no')\nint(total(x))",
    "a loop that some ranks leave": "while True:\n    y = total(x)\n    if RANK == $who: break",
}
_ENDING = {
    "a program of two ranks": "for _ in range($n): v = pair(v)",
    "late calls of a rank outside": "if RANK > 1: time.sleep(0.1)\nfor _ in range(6): v = pair(v)",
    "a program that only its ranks call": "if RANK < 2: v = pair(v)",
    "two programs in another order": "for f in ((total, top) if RANK == $who else (top, total)): int(f(x))",
    "a callback that raises": "victim = $who\nint(call(picky)(x)[0])",
    "a callback's error that is handled": "victim = $who\ntry: int(call(picky)(x)[0])\nexcept Exception as error: print(error)",
    "a thread that outlives the cell": (
        "def go_on():\n    for _ in range(20): jnp.sum(jnp.ones(9)).block_until_ready(); time.sleep(0.01)\n"
        "threading.Thread(target=go_on).start()"
    ),
    "a value with a cycle": "node = {'name': 'r', 'children': []}\nnode['children'].append({'name': 'l', 'parent': node})",
}


def draw_hostile_step(rng: random.Random) -> HostileStep:
    """Draw a step: code that hangs until its interrupt, which it may handle, or code that ends, under one of the guards."""
    hangs = rng.random() < 0.6
    name, code = rng.choice(list((_ENDLESS if hangs else _ENDING).items()))
    source = Template(code).substitute(who=rng.randrange(3), n=rng.randrange(1, 50))
    if hangs and rng.random() < 0.3:
        name += ", handled"
        source = f"try:\n{textwrap.indent(source, '    ')}\nexcept KeyboardInterrupt: print('handled')"
    guard = rng.choice(("lockstep", "parity", "off"))
    return HostileStep(f"{name}, guard {guard}", source, guard, 1.0 if hangs else None)
