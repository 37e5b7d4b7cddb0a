"""How a cell runs on a rank: IPython's full semantics, one answer per cell, and interrupts that lose nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import ANY

import msgspec
import nbformat
import nbformat.v4
import pytest
from msgspec.structs import replace

from mhnb.core.error_site import ErrorSite
from mhnb.core.guard.launch_report import LaunchReport, LaunchRow
from mhnb.core.messages import CellEnded, InterruptDelivered, OutputProduced, RankStatus, RunCell, SkipCell
from mhnb.core.output.events import DisplayData, ErrorRaised, UpdateDisplayData
from mhnb.view.ansi import strip_ansi
from tests.support.cell_process import CellProcess


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CellProcess]:
    """A process that the tests of this module share."""
    with CellProcess(tmp_path_factory.mktemp("rank")) as process:
        yield process


@pytest.fixture
def own_rank(tmp_path: Path) -> Iterator[CellProcess]:
    """A process whose cells are numbered from 1."""
    with CellProcess(tmp_path, generation=3) as process:
        yield process


# -- semantics of a cell


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("1 + 1", "2"),
        ("x = 5\nx", "5"),
        ("1 + 1;", None),
        ("x = 3", None),
        ("None", None),
        ("'a;b'", "'a;b'"),
        ("for i in range(3): i", None),
        ("", None),
        ("  \n", None),
        ("# only a remark", None),
    ],
)
def test_value_of_last_expression_is_shown(rank: CellProcess, source: str, result: str | None) -> None:
    """The value of the last expression is shown, unless a semicolon ends it."""
    answer = rank.run(source)
    assert (answer.ended.outcome, answer.result) == ("ok", result)


@pytest.mark.parametrize("source", ["In [1]: pasted = 5", "In [1]: pasted = 5\n   ...: pasted"])
def test_pasted_prompt_is_removed(rank: CellProcess, source: str) -> None:
    """`In [1]: x = 5` is valid Python, an annotation of `In[1]`, but IPython users mean `x = 5`."""
    rank.run("pasted = None")
    assert rank.run(source).ended.outcome == "ok"
    assert rank.run("pasted").result == "5"


def test_macro_runs_by_its_name(own_rank: CellProcess) -> None:
    """A macro's name runs the macro, although a name alone is valid Python and would only show it."""
    own_rank.run("print('ran')")
    own_rank.run("%macro -q again 1")
    assert own_rank.run("again").stdout.endswith("ran\n")


def test_invalid_escape_warns_once(own_rank: CellProcess) -> None:
    """Parsing a cell ahead adds no warning of its own."""
    own_rank.run("import warnings; warnings.simplefilter('always')\nx = 1")
    result = own_rank.run(r"y = '\d'" + "\nz = 1")
    assert result.stderr.count("invalid escape") == 1


def test_variables_persist(rank: CellProcess) -> None:
    """What a cell defines exists in later cells."""
    rank.run("kept = [1]\ndef double(v): return 2 * v")
    assert rank.run("double(kept)").result == "[1, 1]"


def test_in_out_and_underscores(own_rank: CellProcess) -> None:
    """`_`, `Out`, `In` and the numbered names follow the cells' numbers, including skipped and empty cells."""
    own_rank.run("41 + 1")
    assert own_rank.skip().outcome == "skipped"
    own_rank.run("")
    assert own_rank.run("_, Out[1], _1, In[1], In[2], In[3], _i1, get_ipython().execution_count").result == (
        "(42, 42, 42, '41 + 1', '', '', '41 + 1', 5)"
    )
    result = own_rank.run("sorted(Out), len(In)")
    assert result.result == "([1, 4], 6)"
    assert result.outputs[-1]["execution_count"] == 5


def test_history_magics(own_rank: CellProcess) -> None:
    """`%history` and `_i` refer to the session's cells."""
    own_rank.run("first = 1")
    own_rank.run("second = 2")
    assert own_rank.run("%history 1-2").stdout == "first = 1\nsecond = 2\n"
    assert own_rank.run("_i, _ii").result == "('%history 1-2', 'second = 2')"


def test_await(rank: CellProcess) -> None:
    """Top-level await works, on the loop that the rank already runs."""
    result = rank.run("import asyncio\nawait asyncio.sleep(0)\nprint('slept')\nasync def f(): return 7\nawait f()")
    assert (result.ended.outcome, result.stdout, result.result) == ("ok", "slept\n", "7")


def test_async_with_and_for(rank: CellProcess) -> None:
    """async for and async with at top level work too."""
    result = rank.run("async def gen():\n    yield 1\n    yield 2\nasync for v in gen():\n    print(v)")
    assert result.stdout == "1\n2\n"


def test_word_await_alone_does_not_need_the_loop(rank: CellProcess) -> None:
    """A cell that merely mentions await runs like any other."""
    assert rank.run("'await'").result == "'await'"


def test_main_thread(rank: CellProcess) -> None:
    """Cells run on the main thread, including those that await."""
    source = "import threading; threading.current_thread() is threading.main_thread()"
    assert rank.run(source).result == "True"
    assert rank.run("import asyncio; await asyncio.sleep(0)\n" + source).result == "True"


def test_shell_escape(rank: CellProcess) -> None:
    """`!` runs a command and shows its output; the output can be assigned."""
    assert rank.run("!echo hello && echo there").stdout == "hello\nthere\n"
    assert rank.run("listed = !echo a b\nlisted").result == "['a b']"
    result = rank.run("import jax\nprint('before')\n!echo said >&2; exit 3\nprint('after')\n_exit_code")
    assert (result.stdout, result.stderr, result.result) == ("before\nsaid\nafter\n", "", "3")
    assert rank.run("y, z = 7, '{y}'\n!echo $y {y} {z} {{y}} \"it's\"").stdout == "7 7 {y} {y} it's\n"
    assert rank.run("def f(y):\n    get_ipython().system('echo $y')\nf(8)").stdout == "8\n"
    assert "not supported" in str(rank.run("!sleep 5 &").error)


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash", "fish", "tcsh"])
def test_command_reads_end_of_file(rank: CellProcess, shell: str) -> None:
    """A command that reads input gets the end of file at once, and its output is a terminal, with any shell."""
    if (found := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    rank.run(f"import os; own = os.environ.get('SHELL'); os.environ['SHELL'] = {found!r}")
    result = rank.run("!cat; sh -c 'test -t 1 && echo terminal'; echo the end")
    rank.run("os.environ.pop('SHELL'); os.environ.update({'SHELL': own} if own else {})")
    assert result.stdout == "terminal\nthe end\n"


def test_shell_escape_causes_no_deadlock_warning(rank: CellProcess) -> None:
    """`!` causes no deadlock warning, because the forked process becomes another program at once."""
    result = rank.run("import jax; jax.devices()\n!echo said")
    assert (result.stdout, result.stderr) == ("said\n", "")


def test_time_magic(rank: CellProcess) -> None:
    """`%%time` runs the cell, and shows its value and its time."""
    result = rank.run("%%time\nv = 2\nprint('in it')\nv * 2")
    assert result.stdout.startswith("in it\n")
    assert "Wall time" in result.stdout
    assert result.result == "4"
    assert rank.run("v").result == "2"


def test_terminal_colours_are_available(rank: CellProcess) -> None:
    """Libraries that draw with terminal colours, as rich does for visualize_array_sharding, find a true-colour terminal."""
    shown = rank.run("import os; [os.environ.get(name) for name in ('COLORTERM', 'FORCE_COLOR')]").result
    assert shown == f"[{os.environ.get('COLORTERM', 'truecolor')!r}, '1']"


def test_other_magics(own_rank: CellProcess, tmp_path: Path) -> None:
    """`%%bash`, `%%writefile`, `%run`, `%timeit` and `%who` work as usual."""
    bash = own_rank.run("%%bash\necho out\necho err >&2")
    assert (bash.stdout, bash.stderr) == ("out\n", "err\n")
    script = tmp_path / "script.py"
    own_rank.run(f"%%writefile {script}\nprint('from the script')\nof_the_script = 1")
    assert own_rank.run(f"%run {script}").stdout == "from the script\n"
    assert own_rank.run("of_the_script").result == "1"
    assert "loop" in own_rank.run("%timeit -n1 -r1 1").stdout
    assert "of_the_script" in own_rank.run("%who").stdout


def test_help(rank: CellProcess) -> None:
    """`name?` shows help as a display, because a rank has no pager."""
    (event,) = rank.run("len?").events
    assert isinstance(event, DisplayData)
    assert "number of items" in event.data["text/plain"]


def test_display(rank: CellProcess) -> None:
    """`display()` shows rich data, with pictures as base64."""
    result = rank.run("""
from IPython.display import HTML, Image, display
display(HTML("<b>bold</b>"))
display(Image(data=bytes([0x89, 0x50, 0x4E, 0x47]) + b"\\r\\n\\x1a\\n" + bytes(24), format="png"))
""")
    assert result.outputs[0]["data"]["text/html"] == "<b>bold</b>"
    assert result.outputs[1]["data"]["image/png"].strip() == "iVBORw0KGgoAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.from_dict(o) for o in result.outputs])
    nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))


def test_update_display(rank: CellProcess) -> None:
    """A display is updated through its handle in its cell, and referred to by its id in a later one."""
    result = rank.run(
        "from IPython.display import display\nh = display('old', display_id='of-a-test')\nh.update('new')"
    )
    assert [o["data"]["text/plain"] for o in result.outputs] == ["'new'"]
    later = rank.run("h.update('newer')")
    assert later.events == [UpdateDisplayData({"text/plain": "'newer'"}, {}, "of-a-test")]


def test_clear_output(rank: CellProcess) -> None:
    """`clear_output` removes what the cell has shown."""
    result = rank.run("from IPython.display import clear_output\nprint('a')\nclear_output()\nprint('b')")
    assert result.stdout == "b\n"


def test_carriage_returns(rank: CellProcess) -> None:
    """A progress line shows its last state."""
    assert rank.run("for i in range(3): print(f'\\r{i} of 3', end='')").stdout == "2 of 3"


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.slow
def test_figures(rank: CellProcess) -> None:
    """A figure that a cell leaves open is shown once, at the end of the cell, as a picture."""
    result = rank.run(
        "import matplotlib.pyplot as plt\nfig = plt.figure(figsize=(1, 1)); plt.plot([1, 2]);\nprint('drawn')"
    )
    assert [o["output_type"] for o in result.outputs] == ["stream", "display_data"]
    assert result.outputs[1]["data"]["image/png"].startswith("iVBOR")
    assert rank.run("plt.plot([1]); plt.show(); print('after')").outputs[0]["output_type"] == "display_data"


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.slow
def test_figures_after_an_early_import(tmp_path: Path) -> None:
    """Figures are shown even if the inline backend was imported before the shell existed, as in a supervisor."""
    with CellProcess(tmp_path, preload=["matplotlib_inline.backend_inline"]) as rank:
        result = rank.run("import matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1)); plt.plot([1, 2]);")
        assert [list(o["data"]) for o in result.outputs] == [["text/plain", "image/png"]]


def test_main_module(rank: CellProcess) -> None:
    """Cells are `__main__`: what they define can be pickled, and its source can be found."""
    result = rank.run("""
import inspect, pickle
class Point:
    def __init__(self, x): self.x = x
def area(p): return p.x
__name__, pickle.loads(pickle.dumps(Point(3))).x, inspect.getsource(area)
""")
    assert result.result == "('__main__', 3, 'def area(p): return p.x\\n')"


# -- errors


def test_error_names_its_line(rank: CellProcess) -> None:
    """An error names the innermost line of the cell; the traceback shows the cell's own lines and none of mhnb's."""
    result = rank.run("import json\ndef f():\n    return json.loads('{')   # here\n\nf()")
    ename, evalue, traceback = result.error.ename, result.error.evalue, result.error.traceback
    line, code, at_s = result.error.line, result.error.code, result.error.at_s
    assert result.ended.outcome == "error"
    assert (ename, line, code) == ("JSONDecodeError", 3, "return json.loads('{')   # here")
    text = "\n".join(traceback)
    assert f"Cell {result.ended.seq}, line 5" in strip_ansi(text)
    assert "here" in text
    assert evalue in text
    assert "mhnb" not in text
    assert at_s >= 0


def test_rank_frames_are_hidden(rank: CellProcess) -> None:
    """The traceback leaves out the rank's own code between the user's frames."""
    result = rank.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def fail(): return 1 / 0\n"
        "ThreadPoolExecutor(1).submit(fail).result()"
    )
    text = "\n".join(result.error.traceback)
    assert "fail" in text
    assert "mhnb" not in text
    assert result.error.line == 2


def test_falsy_error_is_an_error(rank: CellProcess) -> None:
    """An exception whose `__bool__` returns False is still an error."""
    result = rank.run("class Empty(Exception):\n    def __bool__(self): return False\nraise Empty('no')")
    assert (result.ended.outcome, result.error.ename) == ("error", "Empty")


def test_error_below_time_magic(rank: CellProcess) -> None:
    """An error below `%%time` names the line of the cell."""
    error = rank.run("%%time\na = 1\nb = a / 0\nprint(b)").error
    assert (error.line, error.code) == (3, "b = a / 0")


def test_error_in_an_older_cell_has_the_calling_line(rank: CellProcess) -> None:
    """An error in an older cell's function has the line of this cell that called it, and the line that raised."""
    defined = rank.run("def older():\n    pass\n    raise KeyError('k')").ended.seq
    error = rank.run("1\n2\nolder()").error
    assert (error.line, error.code) == (3, "older()")
    assert (error.inner_place, error.inner_code) == (f"cell {defined}, line 3", "raise KeyError('k')")
    error = rank.run("def call(function):\n    function()\ncall(older)\n").error
    assert error.inner_code == "raise KeyError('k')"
    own = rank.run("older = lambda: 1 / 0\nolder()").error
    assert (own.line, own.inner_place, own.inner_code) == (1, "", "")


@pytest.mark.parametrize(
    ("source", "site"),
    [
        ("1 / 0", ErrorSite("__main__", "<module>", "", {}, False)),
        (
            "a = np.ones(3)\nb = 1 + np.broadcast_to(a, (2, 2))",
            ErrorSite(ANY, ANY, "np.broadcast_to(a, (2, 2))", {"a": False}, True),
        ),
        (
            "é = {}\nx, y = 'ü', np.stack(é,\n  axis=[])",
            ErrorSite(ANY, ANY, "np.stack(é,\n  axis=[])", {"é": False}, True),
        ),
        (
            "def f(p):\n    np.broadcast_to(p, 2)\nf(a)",
            ErrorSite(ANY, ANY, "np.broadcast_to(p, 2)", {"p": False}, False),
        ),
        # Third-party code is between the cell and NumPy, so its names explain nothing.
        (
            "import json\njson.JSONEncoder(default=np.linalg.inv).encode(a)",
            ErrorSite(ANY, ANY, "", {}, False),
        ),
        ("f(a", ErrorSite(ANY, ANY, "", {}, False)),
    ],
)
def test_error_site_is_reported(rank: CellProcess, source: str, site: ErrorSite) -> None:
    """An error has the function that raised it, and the cell's expression that called a library, with its arrays' names."""
    rank.run("import numpy as np\na = np.ones(3)\ndef f(p):\n    np.broadcast_to(p, 2)")
    found = rank.run(source).error.site
    assert replace(found, caller="", entry="") == site


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("np.broadcast_to(box.a, 2)", {"box.a": False}),
        ("np.broadcast_to(tree['k'][1], 2)", {"tree": False, "tree['k']": False, "tree['k'][1]": False}),
        # No code of the user's runs: neither a property nor an index of the user's own class.
        ("np.broadcast_to(box.raises, 2)", {}),
        ("np.stack(mine['k'], axis=[])", {"mine": False}),
    ],
)
def test_parts_of_values_are_named(rank: CellProcess, source: str, names: dict[str, bool]) -> None:
    """An attribute or item that is an array or a container is named, if no code has to run for it."""
    code = """
import numpy as np
class Box:
    @property
    def raises(self):
        global calls
        calls += 1
        return np.ones(3)
class Mine(dict):
    def __getitem__(self, key):
        global calls
        calls += 1
        return np.ones(3)
calls, box, mine, tree = 0, Box(), Mine(), {"k": [0, np.ones(3)]}
box.a = np.ones(3)
"""
    rank.run(code)
    assert rank.run(source).error.site.names == names
    assert rank.run("calls").result in ("0", "1")


def test_name_without_a_value_is_not_the_global_one(rank: CellProcess) -> None:
    """A local name that has no value yet, or no longer, does not stand for the global variable of that name."""
    rank.run("import numpy as np\nlocal, unset = np.ones(3), {}")
    code = "def f():\n    np.broadcast_to(local, 2 if local.size else unset)\n    unset = 1\nf()"
    assert rank.run(code).error.site.names == {"local": False}


def test_error_with_a_forged_traceback_is_shown(rank: CellProcess) -> None:
    """A traceback made by user code may contain anything; the error is still shown."""
    source = """
import sys, types, numpy as np
try:
    np.broadcast_to(np.ones(3), 2)
except ValueError as error:
    trace = error.__traceback__
    raise error.with_traceback(types.TracebackType(trace.tb_next, trace.tb_frame, 99999, 7777))
"""
    error = rank.run(source).error
    assert error.ename == "ValueError"


def test_syntax_error(rank: CellProcess) -> None:
    """A syntax error is the cell's error, with its line."""
    result = rank.run("a = 1\ndef :\n")
    assert result.ended.outcome == "error"
    assert (result.error.ename, result.error.line, result.error.code) == ("SyntaxError", 2, "def :")


@pytest.mark.parametrize(
    ("source", "ename"),
    [
        ("%no_such_magic", "UsageError"),
        ("%%no_such_magic\n1", "UsageError"),
        ("raise ExceptionGroup('several', [ValueError('one')])", "ExceptionGroup"),
        ("return 5", "SyntaxError"),
        ("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", "Odd"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("await_me = 1\nawait await_me", "TypeError"),
        ("class Shy:\n    def __repr__(self): raise KeyError('no repr')\nShy()", None),
    ],
)
def test_every_error_is_reported_once(rank: CellProcess, source: str, ename: str | None) -> None:
    """Whatever a cell raises, there is one error and the outcome reports it; a failing repr only shows its traceback."""
    result = rank.run(source)
    if ename is None:
        assert "no repr" in str(result.events)
    else:
        assert (result.ended.outcome, result.error.ename) == ("error", ename)
    assert rank.run("1").result == "1"


def test_error_may_render_itself(rank: CellProcess) -> None:
    """An exception that renders itself is shown in its own form."""
    result = rank.run(
        "class Short(Exception):\n    def _render_traceback_(self): return ['short and sweet']\nraise Short"
    )
    assert result.error.traceback == ["short and sweet"]


_PROPERTY = "class Odd(Exception):\n    @property\n    def {name}(self): raise RuntimeError('not this')\n"
_METHOD = "class Odd(Exception):\n    def {name}(self, *_): {does}\n"
_META = "class Meta(type):\n    {does}\nclass Odd(Exception, metaclass=Meta): pass\n"


@pytest.mark.parametrize(
    "makes",
    [
        *(
            _PROPERTY.format(name=name)
            for name in (
                "__class__",
                "__cause__",
                "__context__",
                "__suppress_context__",
                "__traceback__",
                "__notes__",
                "args",
            )
        ),
        *(
            _METHOD.format(name=name, does=does)
            for name, does in (
                ("__getattribute__", "raise RuntimeError"),
                ("__getattribute__", "raise KeyboardInterrupt"),
                ("__getattribute__", "return None"),
                ("__getattr__", "return 5"),
                ("__repr__", "raise RuntimeError"),
                ("__bool__", "raise RuntimeError"),
                ("__len__", "return 0"),
                ("__eq__", "raise RuntimeError"),
                ("_render_traceback_", "raise RuntimeError"),
                ("_render_traceback_", "return [5]"),
            )
        ),
        *(
            _META.format(does=does)
            for does in (
                "__name__ = 5",
                "def __getattribute__(cls, name): raise RuntimeError",
                "def __getattr__(cls, name): raise RuntimeError",
                "__module__ = property(lambda cls: 1 / 0)",
            )
        ),
        "class Odd(Exception): __class__ = int; __cause__ = 'text'; __context__ = 3; __traceback__ = 'none'; __notes__ = 5\n",
        (
            "class Name(str):\n    def __str__(self): raise RuntimeError\n    __eq__ = __hash__ = __format__ = __str__\n"
            "Odd = type(Name('Odd'), (Exception,), {})\n"
        ),
        "class Odd(Exception): pass\nOdd.__module__ = None\n",
        (
            "class Said(str):\n    def __str__(self): raise RuntimeError\n    __contains__ = splitlines = replace = __str__\n"
            "class Odd(Exception):\n    def __str__(self): return Said('no')\n"
        ),
    ],
)
@pytest.mark.slow
def test_error_of_a_misbehaving_class_is_shown(own_rank: CellProcess, makes: str) -> None:
    """Name, text and line are those of the raised error, nothing else is shown, and the next cell runs."""
    result = own_rank.run(f"{makes}raise Odd('no')")
    assert (result.ended.outcome, result.stdout, result.stderr) == ("error", "", "")
    assert (result.error.ename, result.error.evalue) == ("Odd", "no")
    error = result.error
    assert (error.line, error.code) == (makes.count("\n") + 1, "raise Odd('no')")
    assert "mhnb" not in "\n".join(result.error.traceback)
    assert own_rank.run("1").result == "1"


@pytest.mark.parametrize(
    "does", ["1 / 0", "return 5", "return str(self)", "raise KeyboardInterrupt", "raise SystemExit"]
)
def test_failing_str_is_reported_in_the_error(own_rank: CellProcess, does: str) -> None:
    """The error is the one that was raised, and its text reports what its `__str__` raised."""
    result = own_rank.run(f"class Mute(Exception):\n    def __str__(self): {does}\nraise Mute")
    assert (result.ended.outcome, result.stderr, result.error.ename, result.error.line) == ("error", "", "Mute", 3)
    assert result.error.evalue.startswith("<its __str__ raised ")


def test_endless_str_can_be_interrupted(own_rank: CellProcess) -> None:
    """An interrupt ends an endless `__str__`; the error stays the cell's."""
    seq = own_rank.begin(
        "class Slow(Exception):\n    def __str__(self):\n        print('asked')\n        while True: pass\nraise Slow"
    )
    own_rank.wait_for_output(seq, "asked\n")
    own_rank.interrupt()
    result = own_rank.finish(seq)
    assert (result.error.ename, result.error.evalue) == ("Slow", "<its __str__ raised KeyboardInterrupt>")
    assert own_rank.run("1").result == "1"


@pytest.mark.parametrize(
    ("source", "ename"),
    [
        ("a, b = ValueError(1), KeyError(2)\na.__cause__, b.__cause__ = b, a\nraise a", "ValueError"),
        ("a, b = ValueError(1), KeyError(2)\na.__context__, b.__context__ = b, a\nraise a", "ValueError"),
        ("a = ValueError(1)\na.__context__ = ExceptionGroup('g', [a])\nraise a", "ValueError"),
        ("e = None\nfor n in range(3000):\n  f = ValueError(n); f.__cause__ = e; e = f\nraise e", "ValueError"),
        ("e = None\nfor n in range(3000):\n  f = ValueError(n); f.__context__ = e; e = f\nraise e", "ValueError"),
        ("e = ValueError(1)\nfor n in range(3000): e = ExceptionGroup('g', [e])\nraise e", "ExceptionGroup"),
        ("raise ExceptionGroup('g', [ValueError(n) for n in range(50000)])", "ExceptionGroup"),
        ("e = ValueError(1)\nfor n in range(5000): e.add_note('note')\nraise e", "ValueError"),
        ("e = ValueError(1)\ne.__notes__ = [None, 5, object()]\nraise e", "ValueError"),
        ("e = ValueError(1)\ne.__notes__ = 'text'\nraise e", "ValueError"),
        ("def f(): f()\nf()", "RecursionError"),
    ],
)
@pytest.mark.slow
def test_long_chains_and_groups_are_shortened(own_rank: CellProcess, source: str, ename: str) -> None:
    """The traceback stays small, with or without a cycle, and begins with the raised error."""
    result = own_rank.run(source)
    assert (result.ended.outcome, result.error.ename, result.stdout, result.stderr) == ("error", ename, "", "")
    assert sum(map(len, result.error.traceback)) < 30_000
    assert result.error.line is not None


@pytest.mark.parametrize(
    "sets",
    [
        "e.filename = 5; e.lineno = 'x'; e.text = 7; e.msg = 9; e.offset = ''",
        "e.lineno = 10**30; e.offset = -10**30; e.filename = None",
        "e.filename = '<cell 999>'; e.lineno = 1; e.offset = 10**9",
        "Bad = type('SyntaxError', (SyntaxError,), {'filename': property(lambda self: 1 / 0)}); e = Bad('odd')",
    ],
)
def test_syntax_error_with_invalid_fields(own_rank: CellProcess, sets: str) -> None:
    """The fields of a SyntaxError may contain anything; the line is that of the raise."""
    result = own_rank.run(f"e = SyntaxError('odd', ('f.py', 1, 2, 'text'))\n{sets}\nraise e")
    assert (result.error.ename, result.error.line, result.stdout, result.stderr) == ("SyntaxError", 3, "", "")


@pytest.mark.parametrize(("name", "shown"), [("A\\nB", "A B"), ("", "Exception"), ("N" * 1000, "N" * 200 + "…")])
def test_error_name_is_one_short_line(rank: CellProcess, name: str, shown: str) -> None:
    """The error's name is one short line, whatever its class is called."""
    assert rank.run(f"raise type('{name}', (Exception,), {{}})").error.ename == shown


# -- errors that a library or a cell shows in its own way

_HANDLER = "get_ipython().set_custom_exc((ValueError,), {})"


@pytest.mark.parametrize(
    ("sets", "said_by_hook"),
    [
        ("import rich.traceback; rich.traceback.install()", "most recent call last"),
        (_HANDLER.format("lambda self, kind, error, tb, tb_offset=None: print('saw', error)"), "saw told"),
        (_HANDLER.format("lambda self, kind, error, tb, tb_offset=None: ['lines']"), ""),
        (_HANDLER.format("lambda self, kind, error, tb, tb_offset=None: 1 / 0"), "ZeroDivisionError"),
        (_HANDLER.format("lambda self, kind, error, tb, tb_offset=None: self.showtraceback((kind, error, tb))"), ""),
        ("get_ipython().showtraceback = lambda *_, **__: print('hook')", "hook"),
        ("get_ipython()._showtraceback = lambda *_, **__: print('hook')", "hook"),
        ("get_ipython().showtraceback = lambda *_, **__: 1 / 0", "ZeroDivisionError: division by zero"),
        ("type(get_ipython()).showtraceback = lambda *_, **__: print('hook')", "hook"),
        ("import sys; sys.excepthook = lambda *_: print('hook')", ""),
        ("import IPython.core.ultratb as u; u.VerboseTB.structured_traceback = lambda *_, **__: 1 / 0", ""),
        ("import IPython.core.ultratb as u; u.VerboseTB.structured_traceback = lambda *_, **__: 5", ""),
        ("get_ipython().InteractiveTB = None", ""),
        ("get_ipython().call_pdb = True", ""),
        *((f"%xmode {mode}", "") for mode in ("Minimal", "Plain", "Verbose", "Docs", "Doctest")),
    ],
)
@pytest.mark.sample(10)
def test_error_is_read_despite_hooks(own_rank: CellProcess, sets: str, said_by_hook: str) -> None:
    """A hook is called as IPython calls it; name, text and line come from the error itself, once."""
    own_rank.run(sets)
    result = own_rank.run("x = 1\nraise ValueError('told')")
    assert (result.ended.outcome, result.error.evalue, result.error.line) == ("error", "told", 2)
    assert result.error.ename == "ValueError"
    assert said_by_hook in result.stdout + result.stderr
    assert "Unexpected exception" not in result.stdout
    assert own_rank.run("a b").error.ename == "SyntaxError"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import ast, numpy\nast.walk = None\na, b = numpy.ones(3), numpy.ones(4)\njax.numpy.add(a, b)", 4),
        (
            (
                "class Scope(dict):\n"
                "    def keys(self): raise OSError('keys')\n"
                "class Meta(type):\n"
                "    @classmethod\n"
                "    def __prepare__(cls, *_): return Scope()\n"
                "class Made(metaclass=Meta):\n"
                "    x = jax.numpy.add(numpy.ones(3), numpy.ones(4))"
            ),
            7,
        ),
    ],
)
@pytest.mark.slow
def test_error_with_an_unreadable_scope_is_shown(own_rank: CellProcess, source: str, line: int) -> None:
    """A scope that raises, or a function that the cell replaced, removes only the hints from the error."""
    own_rank.run("import jax, numpy")
    result = own_rank.run(source)
    assert (result.error.ename, result.error.line, result.stderr) == ("TypeError", line, "")
    assert "add got incompatible shapes" in result.error.evalue


# -- the line of an error


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("\n\nx = 1\n%alias\n1 / 0", 5),
        ("!echo a \\\n  b\nx = 1\n1 / 0", 4),
        ("x = !ls \\\n  -l\n1 / 0", 3),
        ("%%timeit -n 1 -r 1\nx = 1\n1 / 0", 3),
        ("%%time\nx = 1\nx = = 1", 3),
        ("%%timeit\nx = 1\nx = = 1", 3),
        ("x = 0\n%time y = 1 / x", 2),
        ("x = 0\n%timeit -n 1 -r 1 1 / x", 2),
        ("%%capture\nx = 1\n1 / 0", 3),
        ("x = (\n  f'{1}'\n  f'{1 / 0}'\n)", 3),
        ("[\n  1 / x\n  for x in [0]\n]", 2),
        ("def g():\n    yield 1\n    1 / 0\nlist(g())", 3),
        ("exec('x = 1\\n1 / 0')", 1),
        ("%run no_such_script.py", 1),
    ],
)
def test_error_line_is_that_of_the_cell(rank: CellProcess, source: str, line: int) -> None:
    """The line is that of the cell, however IPython rewrites the cell and whatever runs a part of it."""
    assert rank.run(source).error.line == line


def test_inner_cell_does_not_take_another_cells_name(own_rank: CellProcess) -> None:
    """Code that `%%capture` runs is not a cell of its own, so the next cell's functions keep their source text."""
    own_rank.run("%%capture\ndef inner():\n    return 1 / 0")
    own_rank.run("def outer():\n    return inner()")
    text = strip_ansi("\n".join(own_rank.run("outer()").error.traceback))
    assert "return inner()" in text
    assert "1 / 0" in text


@pytest.mark.parametrize("source", ["exit", "exit()", "quit()", "import sys; sys.exit(3)", "raise SystemExit('bye')"])
def test_exit_is_an_error(own_rank: CellProcess, source: str) -> None:
    """A cell cannot end its rank; the error says how to end the cluster, and nothing else is printed."""
    result = own_rank.run(source)
    assert result.ended.outcome == "error"
    assert result.stderr == ""
    assert result.error.ename == "SystemExit"
    assert "%mhjax stop" in result.error.evalue
    assert own_rank.run("1").result == "1"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("input('name? ')", "input()"),
        ("import getpass; getpass.getpass()", "getpass()"),
        ("import code; code.interact()", "code.interact()"),
        ("import IPython; IPython.embed()", "IPython.embed()"),
        ("%pdb on", "%pdb"),
    ],
)
def test_keyboard_input_is_refused(rank: CellProcess, source: str, what: str) -> None:
    """Anything that would wait for a keyboard raises at once, with the reason and the next step."""
    result = rank.run(source)
    assert (result.ended.outcome, result.error.ename) == ("error", "NoKeyboard")
    assert result.error.evalue.startswith(f"{what} is not available on a rank")
    assert "%mhjax" in result.error.evalue


def test_keyboard_input_raises_end_of_file(rank: CellProcess) -> None:
    """Programs that can do without input get the end of file that they expect."""
    assert rank.run("try: input()\nexcept EOFError: print('no input')").stdout == "no input\n"


# -- order


def test_wrong_number_is_refused(own_rank: CellProcess) -> None:
    """A cell that is not the next one is refused with the number of the next one, and nothing runs."""
    own_rank.send(RunCell(3, 2, "print('never')"))
    refused = own_rank.refused()
    assert refused.seq == 2
    assert "this rank expects cell 1" in refused.reason
    assert own_rank.run("'x' in globals()").result == "False"
    own_rank.send(SkipCell(3, 1))
    assert "this rank expects cell 2" in own_rank.refused().reason


def test_several_numbers_are_skipped_at_once(own_rank: CellProcess) -> None:
    """The rank answers once, for the last of them, and expects the number after it."""
    own_rank.send(SkipCell(3, 1, count=5))
    assert own_rank.finish(5).ended.outcome == "skipped"
    own_rank.send(RunCell(3, 5, "print('never')"))
    assert "this rank expects cell 6" in own_rank.refused().reason


def test_wrong_generation_is_refused(own_rank: CellProcess) -> None:
    """A cell for another generation of the cluster is refused."""
    own_rank.send(RunCell(2, 1, "print('never')"))
    assert "generation 2" in own_rank.refused().reason
    assert own_rank.run("1").result == "1"


def test_one_cell_at_a_time(own_rank: CellProcess) -> None:
    """While a cell awaits, another is refused; afterwards it runs under the same number."""
    seq = own_rank.begin("import asyncio\nfree = asyncio.Event()\nprint('waiting')\nawait free.wait()")
    own_rank.wait_for_output(seq, "waiting\n")
    own_rank.send(RunCell(3, 2, "1"))
    assert "cell 1 is still running" in own_rank.refused().reason
    own_rank.interrupt()
    own_rank.finish(seq)
    assert own_rank.run("1").result == "1"


def test_error_is_repeated_to_a_notebook_that_attaches(own_rank: CellProcess, tmp_path: Path) -> None:
    """The last cell's error is repeated also if it was sent while the cell waited for its launches; the next cell replaces it."""
    go = tmp_path / "go"
    wait = f"import os, time\ndef waiting():\n    while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    seq = own_rank.begin(f"{wait}1 / 0")
    own_rank.receive(lambda m: isinstance(m, OutputProduced) and any(isinstance(e, ErrorRaised) for e in m.events))
    go.touch()
    assert own_rank.finish(seq).ended.events == []
    last = msgspec.convert(own_rank.describe_state()["last"], CellEnded)
    assert (last.seq, last.outcome) == (seq, "error")
    (error,) = last.events
    assert isinstance(error, ErrorRaised)
    assert error.ename == "ZeroDivisionError"
    own_rank.skip()
    assert msgspec.convert(own_rank.describe_state()["last"], CellEnded).events == []


def test_launches_are_part_of_the_cell(own_rank: CellProcess) -> None:
    """The final message lists the cell's launches. Output and errors while the cell waits for them belong to the cell."""
    result = own_rank.run("rows = [['f', 'jit(f)', [0, 1], 1, 2]]; abandoned = 1\ndef waiting(): print('waited')")
    report = LaunchReport([LaunchRow("f", "jit(f)", (0, 1), 1, 2)], abandoned_count=1)
    assert (result.ended.launches, result.stdout) == (report, "waited\n")
    result = own_rank.run("def waiting(): raise RuntimeError('a launch failed')")
    assert (result.ended.outcome, result.error.ename, result.error.evalue) == (
        "error",
        "RuntimeError",
        "a launch failed",
    )
    result = own_rank.run("import asyncio\nawait asyncio.sleep(0)")
    assert (result.ended.outcome, result.error.ename) == ("error", "RuntimeError")


# -- interrupts

SPIN = "print('started')\nwhile True: pass"
SLEEP = "import time\nprint('started')\ntime.sleep(600)"


@pytest.mark.parametrize(
    "source",
    [
        SPIN,
        SLEEP,
        "import asyncio\nprint('started')\nawait asyncio.sleep(600)",
        "import asyncio\nawait asyncio.sleep(0)\n" + SPIN,
        "import asyncio, time\nasync def f():\n    print('started')\n    time.sleep(600)\nawait f()",
        "def waiting():\n    import time\n    print('started')\n    time.sleep(600)",
        "while True: print('started')",
    ],
)
@pytest.mark.slow
def test_interrupt_ends_the_cell(tmp_path: Path, source: str) -> None:
    """SIGINT ends a cell that computes, sleeps, awaits, prints or waits for its launches; the next one runs."""
    with CellProcess(tmp_path) as rank:
        seq = rank.begin(source)
        rank.wait_for_output(seq, "started\n")
        rank.interrupt()
        result = rank.finish(seq)
        assert result.ended.outcome == "interrupted"
        assert result.error.ename == "KeyboardInterrupt"
        assert rank.run("waiting = int; 'alive'").result == "'alive'"


def test_launches_have_a_moment_to_end_after_an_interrupt(own_rank: CellProcess) -> None:
    """Repeated signals do not shorten the short wait for launches; the launches that still run then are reported."""
    source = """
import os, signal
running, finished, asked = 1, 0, True
def finishing():
    global finished
    os.kill(os.getpid(), signal.SIGINT)
    finished += 1
raise KeyboardInterrupt"""
    result = own_rank.run(source)
    assert (result.ended.outcome, result.ended.launches.running_count) == ("interrupted", 1)
    assert own_rank.run("running = 0\nfinished").result == "1"
    assert own_rank.run("finished = 0\ndef waiting(): raise KeyboardInterrupt").ended.outcome == "interrupted"
    assert own_rank.run("waiting = int\nasked = False\nfinished").result == "1"


@pytest.mark.slow
def test_wait_after_an_interrupt_is_not_a_collective(own_rank: CellProcess, tmp_path: Path) -> None:
    """A rank that waits for launches it gave up must not be disconnected, because one long step may take that long."""
    flag = tmp_path / "seen"
    source = f"""
import os, time
from mhnb.core.hang_report import PendingLaunch
flight, asked = PendingLaunch("jit(f)", (0, 1), 1, 1), True
def finishing():
    while not os.path.exists({str(flag)!r}): time.sleep(0.01)
raise KeyboardInterrupt"""
    seq = own_rank.begin(source)
    # A status before the cell has reached its last line knows no launch.
    status = own_rank.receive(lambda m: isinstance(m, RankStatus) and m.participants is not None)
    assert isinstance(status, RankStatus)
    assert (status.participants, status.is_launched) == ([0, 1], False)
    flag.touch()
    assert own_rank.finish(seq).ended.outcome == "interrupted"


@pytest.mark.parametrize(("raised", "shown"), [("KeyboardInterrupt", False), ("ValueError", True)])
def test_interrupt_shows_no_jax_frames(own_rank: CellProcess, raised: str, shown: bool) -> None:  # noqa: FBT001
    """JAX frames are left out, because a busy machine renders them for longer than an interrupt may take; the line is kept."""
    source = f"""
asked = True
inside = {{"__name__": "jax.deep"}}
exec(compile("def call(): raise {raised}", "deep.py", "exec"), inside)
inside["call"]()"""
    result = own_rank.run(source)
    assert result.ended.outcome == ("error" if shown else "interrupted")
    text = "\n".join(result.error.traceback)
    assert ("deep.py:1" in text) == shown
    assert result.error.line == 5


@pytest.mark.parametrize("code", [
    "raise KeyboardInterrupt",
    "import asyncio\nawait asyncio.sleep(0)\nraise KeyboardInterrupt",
    "import asyncio\nraise asyncio.CancelledError",
    "raise GeneratorExit",
    "raise SystemExit(3)",
])  # fmt: skip
def test_exception_of_the_code_is_not_an_interrupt(own_rank: CellProcess, code: str) -> None:
    """The code's own exceptions, even those that end a program, a generator or a task, are errors; the next cell runs."""
    result = own_rank.run(code)
    assert result.ended.outcome == "error"
    assert result.error.ename == code.rpartition(" ")[2].partition(".")[2] or code.rpartition(" ")[2].partition("(")[0]
    assert own_rank.run("'alive'").result == "'alive'"


def test_cell_may_catch_its_interrupt(rank: CellProcess) -> None:
    """A cell may catch its interrupt and succeed; the next SIGINT works again."""
    source = "try:\n    print('started')\n    while True: pass\nexcept KeyboardInterrupt:\n    print('caught')"
    for _ in range(2):
        seq = rank.begin(source)
        rank.wait_for_output(seq, "started\n")
        rank.interrupt()
        result = rank.finish(seq)
        assert (result.ended.outcome, result.stdout) == ("ok", "caught\n")


CATCHES_INTERRUPT = """
import os, time
from mhnb.rank.execution import interrupts
interrupts._SAME_INTERRUPT_S = 1000.0
print("started")
try:
    while True: time.sleep(0.01)
except KeyboardInterrupt:
    print("saving")
    while not os.path.exists(flag): time.sleep(0.01)
    interrupts._SAME_INTERRUPT_S = 0.0
    print("still saving")
    while True: time.sleep(0.01)
"""
AWAITS_AND_CATCHES_INTERRUPT = CATCHES_INTERRUPT.replace(
    "while True: time.", "import asyncio\n    while True: await asyncio."
).replace("KeyboardInterrupt", "(KeyboardInterrupt, asyncio.CancelledError)")


@pytest.mark.parametrize("source", [CATCHES_INTERRUPT, AWAITS_AND_CATCHES_INTERRUPT], ids=["python", "await"])
@pytest.mark.slow
def test_delivered_interrupt_is_reported_and_counts_once(own_rank: CellProcess, tmp_path: Path, source: str) -> None:
    """The notebook repeats an interrupt until its delivery is reported: repeats until then are the same one, later ones new."""
    flag = tmp_path / "later"
    own_rank.run(f"flag = {str(flag)!r}")
    seq = own_rank.begin(source)
    own_rank.wait_for_output(seq, "started\n")
    own_rank.interrupt()
    own_rank.wait_for_output(seq, "saving\n")
    assert own_rank.receive(lambda m: isinstance(m, InterruptDelivered)) == InterruptDelivered(0, seq)
    own_rank.interrupt()
    # The signal counted as the same interrupt: the cell is still saving when it next reports its status.
    own_rank.receive(lambda m: isinstance(m, RankStatus))
    flag.touch()
    own_rank.wait_for_output(seq, "still saving\n")
    own_rank.interrupt()
    assert own_rank.finish(seq).ended.outcome == "interrupted"


def test_interrupt_after_a_dropped_one_counts(own_rank: CellProcess) -> None:
    """Python drops what a finalizer raises, so the next interrupt must end the cell, however soon it comes."""
    source = """
import time
from mhnb.rank.execution import interrupts
interrupts._SAME_INTERRUPT_S = 1000.0
class Closes:
    def __del__(self):
        print("started")
        time.sleep(600)
Closes()
print("dropped")
while True: pass"""
    seq = own_rank.begin(source)
    own_rank.wait_for_output(seq, "started\n")
    own_rank.interrupt()
    own_rank.wait_for_output(seq, "dropped\n")
    own_rank.interrupt()
    result = own_rank.finish(seq)
    assert (result.ended.outcome, result.error.line) == ("interrupted", 11)


def test_interrupt_between_cells_does_nothing(rank: CellProcess) -> None:
    """SIGINT while no cell runs does nothing."""
    rank.run("0")
    for _ in range(20):
        rank.interrupt()
    assert rank.run("1").result == "1"


def test_interrupt_works_after_a_cell_replaced_the_handler(rank: CellProcess) -> None:
    """After a cell has replaced the SIGINT handler, the next cell can be interrupted again."""
    rank.run("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN);")
    seq = rank.begin(SPIN)
    rank.wait_for_output(seq, "started\n")
    rank.interrupt()
    assert rank.finish(seq).ended.outcome == "interrupted"


@pytest.mark.parametrize("source", ["x = 1", "print('x')", "import asyncio; await asyncio.sleep(0)", "1 / 0"])
@pytest.mark.slow
def test_interrupt_at_any_moment_is_survived(own_rank: CellProcess, source: str) -> None:
    """Whenever SIGINT comes, each cell is answered exactly once and the rank stays alive."""
    own_rank.run("pass")
    for _ in range(60):
        seq = own_rank.begin(source)
        own_rank.interrupt()
        own_rank.interrupt()
        ended = own_rank.receive(lambda message: isinstance(message, CellEnded))
        assert isinstance(ended, CellEnded)
        assert ended.seq == seq
        assert ended.outcome in ("ok", "error", "interrupted")
    assert own_rank.run("'alive'").result == "'alive'"


_STREAM = """
import sys
class Stream:
    def __init__(self, inner): self.buffer = inner
    def write(self, text): return self.buffer.write(text)
    def flush(self):
        {body}
sys.stdout = Stream(sys.stdout)
{end}
"""


@pytest.mark.parametrize("end", ["", "import asyncio; await asyncio.sleep(0)"], ids=["plain", "async"])
def test_interrupt_ends_the_flush_of_a_stream_of_the_cell(own_rank: CellProcess, end: str) -> None:
    """A stream that a cell leaves may be endless when it is flushed at the end; the next cell has the rank's own again."""
    seq = own_rank.begin(_STREAM.format(body="print('flushing', file=sys.stderr)\n        while True: pass", end=end))
    own_rank.wait_for_output(seq, "flushing")
    own_rank.interrupt()
    assert own_rank.finish(seq).ended.outcome == "interrupted"
    assert own_rank.run("print('next')").stdout == "next\n"


def test_exit_out_of_a_stream_of_the_cell_is_noted(own_rank: CellProcess) -> None:
    """The cell ends, and says that its stream is not used any more."""
    answer = own_rank.run(_STREAM.format(body="raise SystemExit(3)", end=""))
    assert answer.ended.outcome == "ok"
    assert "this cell replaced sys.stdout" in answer.stderr


def test_class_of_a_value_costs_no_cell(own_rank: CellProcess) -> None:
    """Whether a line may be a magic is asked of its first word's value, whatever that says of its class."""
    own_rank.run("class Unbound:\n    __class__ = property(lambda self: 1 / 0)\nvalue = Unbound()")
    assert own_rank.run("value = 5").ended.outcome == "ok"
    assert own_rank.run("print(value)").stdout == "5\n"


# -- the card of a failed allocation


_PYTREE = """
import jax
class Node: pass
def flatten(node):
    print('flattening', flush=True)
    {body}
jax.tree_util.register_pytree_node(Node, flatten, lambda *_: None)
bad = Node()
"""


@pytest.mark.parametrize("is_late", [False, True], ids=["its code", "what it launched"])
def test_interrupt_ends_only_the_card_of_a_failed_allocation(own_rank: CellProcess, *, is_late: bool) -> None:
    """A value whose flattening is endless costs the card, and the cell ends with its own error."""
    own_rank.run(_PYTREE.format(body="while True: pass"))
    fail = "raise MemoryError('no room')"
    seq = own_rank.begin(f"def waiting(): {fail}" if is_late else fail)
    own_rank.wait_for_output(seq, "flattening")
    own_rank.interrupt()
    answer = own_rank.finish(seq)
    assert (answer.ended.outcome, answer.error.ename) == ("error", "MemoryError")
    assert answer.error.memory is not None
    assert answer.error.memory.problem.startswith("the arrays in memory could not be listed: KeyboardInterrupt")


def test_exit_out_of_a_value_spares_the_card(own_rank: CellProcess) -> None:
    """A value whose flattening exits is named in the card, and the cell ends with its own error."""
    own_rank.run(_PYTREE.format(body="raise SystemExit(3)"))
    error = own_rank.run("raise MemoryError('no room')").error
    assert (error.ename, error.memory is not None) == ("MemoryError", True)
    assert error.memory is not None
    assert error.memory.memory is not None
    assert any("bad could not be searched for arrays: SystemExit" in each for each in error.memory.memory.problems)
