"""The pictures of the documentation, from cells that ran on real ranks in a real JupyterLab; MHNB_WRITE_PICTURES=1 saves them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

from tests.support.lab import Lab, LabPage, open_chromium
from tests.support.leftovers import no_leftovers
from tests.support.source import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.ranks,
    pytest.mark.requires_part("browser"),
    pytest.mark.timeout(600),
]

FOLDER = ROOT / "docs" / "img"
WIDTH, MAX_NBYTES = 1280, 200_000
SETUP = """%%mhjax
import time
import jax, jax.numpy as jnp, mhnb, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

rank, mesh = jax.process_index(), jax.make_mesh((4, 2), ("data", "model"))
x = jax.device_put(jnp.arange(48.0).reshape(8, 6), NamedSharding(mesh, P("data", None)))
w = jax.device_put(jnp.ones((6, 4)), NamedSharding(mesh, P(None, "model")))
params = jax.device_put(jnp.ones((1024, 512)), NamedSharding(mesh, P()))
if rank == 2:
    cache = jnp.ones((1024, 1024))
line = Mesh(np.array(jax.devices()), ("x",))
batch, weights = (jax.device_put(np.ones((1024, 1024), np.float32), NamedSharding(line, spec)) for spec in (P("x"), P()))
total, largest = jax.jit(jnp.sum), jax.jit(jnp.max)
forward = jax.jit(lambda a, b: (a @ b).sum())
loss_of = jax.jit(lambda scale, values: (scale * values).mean())
step = jax.jit(lambda w, x: jnp.sum((x @ w) ** 2))
forward(batch, weights).block_until_ready()
loss_of(1.0, x)"""
STEPS = """for i in range(20):
    if rank == 2:
        time.sleep(0.05)  # loads its batch from a slow disk
    {call}.block_until_ready()"""
CELLS = {
    "start": "%load_ext mhnb\n%mhjax start",
    "first-cell": """%%mhjax
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("x",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))
jax.jit(jnp.sum)(x)""",
    "set-up": SETUP,
    "layout": "%mhjax layout x",
    "collectives": "%mhjax collectives step(w, x)",
    "memory": "%mhjax memory --top 4",
    "metrics": """%%mhjax
for i in range(60):
    loss = loss_of(1 / (1 + i), x)  # over all devices: the same on every rank
    own = 1 / (1 + i) + (0.5 if rank == 2 else 0.01 * rank)  # this rank's alone
    mhnb.log(i, loss=loss, own=own)""",
    "slow rank": f"%%mhjax\n{STEPS.format(call='total(x)')}",
    "stragglers": "%mhjax flight",
    "trace": f"%%mhjax --trace\n{STEPS.format(call='forward(batch, weights)').replace('20', '4')}",
    "trace-open": "%mhjax trace open",
    "order-mismatch": """%%mhjax
value = total(x) if rank == 0 else largest(x)
float(value)""",
    "differs": """%%mhjax
for i in range(3):
    print(f"step {i} loss {0.5 / (i + 1) + (0.1 if rank == 2 else 0):.3f}")""",
    "panel": "%mhjax show",
    "fit set-up": """%%mhjax
shapes = {"up": (8192, 28672), "down": (28672, 8192)}
layer = {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, shape in shapes.items()}
tokens = jax.ShapeDtypeStruct((65536, 8192), jnp.bfloat16)
rules = {"up": P("data", "model"), "down": P("model", "data"), "tokens": P("data")}
def loss(layer, tokens):
    up, down = (jax.sharding.reshard(layer[name], spec) for name, spec in (("up", P(None, "model")), ("down", P("model"))))
    return jnp.einsum("th,hd->td", jax.nn.relu(tokens @ up), down, out_sharding=P("data")).astype(jnp.float32).mean()
train = jax.jit(jax.grad(loss))""",
    "fit": '%mhjax fit train(layer, tokens) --on h100:8x8 --mesh "data, model" --specs rules --search',
    "hang": """%%mhjax
for i in range(3 if rank == 2 else 4):
    total(x * i)
if rank == 2:
    while not x.is_deleted():
        time.sleep(0.1)""",
    "stop": "%mhjax stop",
    "plan": """%mhjax plan --program "lambda x: x.sum()" --array "x bf16[1024,512] P('data')" """,
}
NAMES = list(CELLS)
PICTURES = (
    "collectives",
    "first-cell",
    "fit",
    "hang",
    "layout",
    "memory",
    "metrics",
    "order-mismatch",
    "panel",
    "plan",
    "stragglers",
    "trace",
)
SHORTEN_PATHS = """(cell, [own, usual]) => {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT)
    while (walker.nextNode()) walker.currentNode.data = walker.currentNode.data.replace(own, usual)
}"""
"""As on the pages: the tests keep the state of clusters in a folder of their own."""
HEIGHTS = {"fit": 1200, "plan": 1400}
"""Of the window, for an output that is higher than most."""
SHOWN = {"hang": ".mhnb-hang", "panel": ".mhnb-panel .mhnb-button"}
"""What is in the output before the picture is taken, of cells whose output comes late."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The notebook after its cells ran, with a picture of each."""

    browser: Browser
    folder: Path
    texts: dict[str, str]
    """The text of each cell and its output, when its picture was taken."""


@pytest.fixture(scope="module")
def taken(mhnb_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    """Run the cells one after the other, and take the pictures meanwhile."""
    root = tmp_path_factory.mktemp("pictures")
    folder = FOLDER if os.environ.get("MHNB_WRITE_PICTURES") == "1" else root / "img"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}  # else Lab asks
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, root / "pictures.ipynb")
    with no_leftovers(mhnb_home), open_chromium() as browser, Lab(root) as lab, lab.page(browser, scale=1.5) as page:
        page.open("pictures.ipynb")
        texts = {}
        for name in CELLS:
            page.page.set_viewport_size({"width": WIDTH, "height": HEIGHTS.get(name, 900)})
            _run(page, name)
            texts[name] = page.cell(NAMES.index(name)).inner_text()
            if name in PICTURES:
                page.cell(NAMES.index(name)).evaluate(SHORTEN_PATHS, [str(mhnb_home), "~/.local/state/mhnb"])
                page.screenshot(folder / f"{name}.png", cell=NAMES.index(name))
            if name == "hang":
                page.interrupt()
            page.wait_idle()
        yield Taken(browser, folder, texts)


def _run(page: LabPage, name: str) -> None:
    index = NAMES.index(name)
    page.start_cell(index)
    if name in SHOWN:
        page.cell(index).locator(SHOWN[name]).first.wait_for()
    else:
        page.wait_idle()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.requires_part("compilers") if name == "fit" else ()) for name in PICTURES],
)
def test_picture_of_a_cell(taken: Taken, name: str) -> None:
    """The picture shows a cell with its output, and is small enough for a page."""
    from PIL import Image

    picture = taken.folder / f"{name}.png"
    assert picture.stat().st_size < MAX_NBYTES
    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(maxcolors=image.width * image.height)
        assert image.width > WIDTH / 2
        assert colours is not None
        assert len(colours) > 20  # letters are smoothed; a blank picture has one


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("first-cell", ["Array(28."]),
        ("hang", ["waiting", "ranks 0-1,3", "missing", "rank 2"]),
        ("layout", ["rows 0:2", "host3"]),
        pytest.param("fit", ["data 64, model 1", "of peak", "the best"], marks=pytest.mark.requires_part("compilers")),
        ("collectives", ["all-reduce"]),
        ("memory", ["cache", "only on rank 2", "params"]),
        ("metrics", ["loss", "rank 2 0.517"]),
        ("order-mismatch", ["OrderMismatch", "jit(sum)", "jit(max)"]),
        ("stragglers", ["rank 2 came last at"]),
        ("trace", ["compute", "waiting", "all-reduce"]),
        ("panel", ["rank 2"]),
        ("plan", ["4 × 2", "data: 4 parts of 256", "all-reduce", "x_sharding = NamedSharding("]),
    ],
)
def test_output_is_what_the_page_says(taken: Taken, name: str, words: list[str]) -> None:
    """A picture of an error in the set-up would look well, too."""
    assert [word for word in words if word not in taken.texts[name]] == []


def test_picture_of_a_timeline(taken: Taken) -> None:
    """The picture shows the page of a timeline, with a collective that waits for a late rank."""
    [path] = re.findall(r"without a network: (\S+)", taken.texts["trace-open"])
    page = taken.browser.new_page(viewport={"width": 1000, "height": 520})
    page.goto(Path(path).as_uri())
    page.get_by_text("4 ranks").wait_for()
    page.get_by_label("find").fill("waits for rank 2")
    page.get_by_role("button", name="next").click()
    page.get_by_role("button", name="all").click()
    page.screenshot(path=taken.folder / "timeline.png")
    page.close()
    assert (taken.folder / "timeline.png").stat().st_size < MAX_NBYTES


@pytest.mark.parametrize("name", [*PICTURES, "timeline"])
def test_picture_is_kept(name: str) -> None:
    """Each picture is in docs/img, for the pages that show it."""
    assert (FOLDER / f"{name}.png").stat().st_size < MAX_NBYTES
