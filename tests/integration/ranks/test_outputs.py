"""Output of real ranks: progress bars and widgets as text, C++ noise separated, memory and lines while a cell runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult
from mhnb.core.output.rich import collect_figures
from mhnb.view.cell.text import format_cell_text

PSUM = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ('a', 'b'))
x = jax.device_put(np.arange(8, dtype=np.float32).reshape(2, 4), NamedSharding(mesh, P('a')))
float(jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(mesh, P()))(x))
"""


@pytest.mark.parametrize("bar", ["auto import tqdm", "notebook import tqdm", "notebook import tqdm_notebook as tqdm"])
def test_tqdm_bars_of_all_ranks_are_one_text_bar(cluster: Cluster, bar: str) -> None:
    """tqdm draws text instead of a widget, which no browser could reach, and the bars of four ranks are shown as one."""
    result = cluster.run(f"from tqdm.{bar}\nfor _ in tqdm(range(8), desc='train'): pass")
    result.check()
    assert all("train: 100%|" in rank.stderr for rank in result)
    text = format_cell_text(result)
    assert text.count("train") == 1


def test_errors_of_all_ranks_are_in_the_text_and_in_their_logs(cluster: Cluster) -> None:
    """A few long errors are all in the text, and the log of each rank has its own: the text of many ranks refers to it."""
    code = "rank = __import__('jax').process_index()\n"
    code += (
        "raise (ValueError, KeyError, TypeError, OSError)[rank]('\\n'.join(f'{word}{rank}' for word in 'abcdefghij'))"
    )
    text = format_cell_text(cluster.run(code))
    assert "more failure" not in text
    for rank in cluster.ranks:
        assert all(f"j{rank.rank}" in where for where in (text, rank.log_path.read_text()))


def test_widget_on_a_rank_says_why_it_is_text(cluster: Cluster) -> None:
    """A widget made on a rank is shown as text, with one line that explains why."""
    result = cluster.run("import ipywidgets\nipywidgets.IntSlider(value=3)")
    first, why = (result[0].text or "").splitlines()
    assert first == "IntSlider(value=3)"
    assert "cannot reach a widget on a rank" in why


@pytest.mark.soak
def test_plotly_figure_is_sent_as_data(cluster: Cluster) -> None:
    """A plotly figure is sent as its data, which a front end draws, and not with plotly's whole script of 5 MB per rank."""
    result = cluster.run("import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[1, 2], name='load'))")
    result.check()
    for rank in result:
        (output,) = rank.outputs
        assert set(output["data"]) == {"application/vnd.plotly.v1+json", "text/plain"}
    (figure,) = collect_figures(result)
    assert figure.ranks == (0, 1, 2, 3)
    assert figure.content["data"][0]["name"] == "load"
    assert format_cell_text(result).count("a plotly figure: bar") == 1


def test_gloo_output_is_noise(cluster: Cluster) -> None:
    """Gloo's greeting at the first collective of a set of devices is noise, and is in no stream."""
    cluster.run("jax.clear_caches()").check()
    result = cluster.run(PSUM)
    result.check()
    assert all("[Gloo]" not in rank.stdout + rank.stderr for rank in result)
    noisy = [rank for rank in result if rank.noise]
    assert all("[Gloo]" in rank.noise for rank in noisy)


def test_image_given_as_bytes_is_shown(cluster: Cluster) -> None:
    """An image that Pillow gives as bytes is sent as base64, as a notebook stores it, and the ranks live on."""
    result = cluster.run("from PIL import Image\nImage.new('RGB', (4, 2))")
    result.check()
    assert {rank.outputs[0]["data"]["image/png"][:6] for rank in result} == {"iVBORw"}


def test_noise_of_c_code_is_separated(cluster: Cluster) -> None:
    """Noise that C++ code writes to the descriptor between the user's lines is separated from them."""
    line = "[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3"
    result = cluster.run(f"import os\nprint('mine', flush=True)\n_ = os.write(1, b'{line}\\n')")
    assert [rank.stdout for rank in result] == ["mine\n"] * 4
    assert [rank.noise for rank in result] == [line + "\n"] * 4


def test_running_cell_reports_lines_and_memory(cluster: Cluster, tmp_path: Path) -> None:
    """After about two seconds each rank has reported its line and memory."""
    flag, seen = tmp_path / "seen", []

    def on_snapshot(snapshot: CellResult) -> None:
        if snapshot.where is not None and len(snapshot.where.memory_nbytes) == 4:
            seen.append(snapshot.where)
            flag.touch()

    code = f"import os, time\nwhile not os.path.exists({str(flag)!r}):\n    time.sleep(0.1)"
    cluster.run(code, on_snapshot=on_snapshot, timeout_s=60).check()
    report = seen[0]
    assert all(report.memory_nbytes[rank] > 10_000_000 for rank in range(4))
    assert set(report.lines.values()) <= {2, 3}


def test_first_line_arrives_before_the_cell_ends(cluster: Cluster) -> None:
    """A snapshot with the first line comes long before the cell ends, and at most about ten come per second."""
    seen: list[CellResult] = []
    code = "import time\ntime.sleep(0.5)\nfor n in range(200):\n    print('line', n, flush=True)\n    time.sleep(0.01)"
    result = cluster.run(code, on_snapshot=seen.append)
    result.check()
    with_line = [snapshot for snapshot in seen if "line 0" in snapshot.ranks[0].stdout]
    assert with_line
    assert with_line[0].wall_s < result.wall_s
    assert len(seen) <= 11 * result.wall_s + 3


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("%matplotlib notebook\nimport matplotlib.pyplot as plt", "%matplotlib notebook"),
        ("%matplotlib widget\nimport matplotlib.pyplot as plt", "%matplotlib widget"),
        ("%matplotlib qt\nimport matplotlib.pyplot as plt", "%matplotlib qt"),
        (
            "import matplotlib.pyplot as plt\nplt.switch_backend('nbagg')",
            "the backend matplotlib.backends.backend_nbagg",
        ),
    ],
)
@pytest.mark.sample(2)
def test_figure_is_a_picture_with_any_backend(cluster: Cluster, source: str, asked: str) -> None:
    """Whatever backend is requested, one sentence says that a rank has no browser, and one picture is shown."""
    result = cluster.run(f"{source}\nplt.plot([1, 2])\nplt.show()")
    cluster.run("%matplotlib inline").check()
    first = result.check()[0]
    # Matplotlib mentions its font cache if a busy machine takes more than five seconds to build it.
    said = [line for line in first.stderr.splitlines() if "font cache" not in line]
    assert said == [f"mhnb: {asked} needs a browser or a screen, which a rank does not have; using inline instead"]
    assert ["image/png" in output["data"] for output in first.outputs if "data" in output] == [True]


@pytest.mark.parametrize(
    "source",
    [
        r"""print("a\nb\nc", end="")
print("\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K" + "A\nB\nC")""",
        r"""import sys
_ = sys.stdout.write("a\nb\n"), sys.stdout.flush(), sys.stdout.write("\x1b[2A\x1b[JA\nB\nC\n")""",
        """from rich.live import Live
from rich.text import Text
with Live(Text("a\\nb\\nc"), auto_refresh=False) as live:
    live.update(Text("b\\nc\\nd"), refresh=True)
    live.update(Text("A\\nB\\nC"), refresh=True)""",
    ],
)
def test_overwritten_lines_are_shown_once(cluster: Cluster, source: str) -> None:
    """Lines that are overwritten by moving the cursor up end as in a terminal, and ranks with equal output are one block."""
    result = cluster.run(source).check()
    assert [rank.stdout for rank in result] == ["A\nB\nC\n"] * 4
    assert len(result.groups) == 1


def test_growing_table_is_one_block(cluster: Cluster) -> None:
    """A table whose rows a rich thread draws at different moments on each rank ends as one block."""
    result = cluster.run("""
from rich.live import Live
from rich.table import Table
import time
def table(rows):
    made = Table("step", "loss")
    for row in range(rows): made.add_row(str(row), f"{1 / (row + 1):.3f}")
    return made
with Live(table(1), refresh_per_second=100) as live:
    for rows in range(2, 6): time.sleep(0.02 * jax.process_index()); live.update(table(rows))
""").check()
    assert len(result.groups) == 1
    lines = result[0].stdout.splitlines()
    assert [line.split()[1:4:2] for line in lines[3:-1]] == [
        ["0", "1.000"], ["1", "0.500"], ["2", "0.333"], ["3", "0.250"], ["4", "0.200"],
    ]  # fmt: skip
    assert sum("step" in line for line in lines) == 1


_OWN_TRACEBACKS = """
for name in ("_showtraceback", "showtraceback", "showsyntaxerror"): vars(get_ipython()).pop(name, None)
get_ipython().set_custom_exc((), None)
"""


@pytest.mark.parametrize(
    "handler",
    [
        "import rich.traceback; _ = rich.traceback.install()",
        "get_ipython().set_custom_exc((KeyError,), lambda *a, **k: print('seen'))",
    ],
)
def test_result_has_the_error_with_any_handler(cluster: Cluster, handler: str) -> None:
    """Another traceback handler prints as in IPython, and the result still has the error's name, rank, line and text."""
    cluster.run(handler).check()
    result = cluster.run('d = {"a": 1}\nif jax.process_index() == 0:\n    d["missing"]')
    cluster.run(_OWN_TRACEBACKS).check()
    assert format_cell_text(result).splitlines()[:3] == [
        "KeyError on rank 0 · ranks 1-3 finished",
        f'  cell {result.seq}, line 3:   d["missing"]',
        "  KeyError: 'missing'",
    ]
    assert result[0].stdout.strip() or result[0].stderr.strip()


def test_note_names_the_unfinished_cell(cluster: Cluster) -> None:
    """Only the cell after one that raised on some ranks is marked: short, with that cell's name, and as text in one line."""
    first = cluster.run("if jax.process_index() == 1: raise ValueError('only here')\nx = 1")
    assert first.notes == ("the ranks are still in sync, but variables set in this cell may differ",)
    second, third = cluster.run("1 + 1"), cluster.run("1 + 1")
    mark = f"cell {first.seq} finished on ranks 0,2-3 only: variables may differ"
    assert (second.notes, str(second.carried)) == ((), mark)
    heading, shown = format_cell_text(second).splitlines()
    assert (heading.partition("   ")[2], shown) == (f"[{mark}]", "  2")
    assert (third.notes, third.carried) == ((), None)
