"""Links of a page of the site to files outside of docs/."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

links: Any = importlib.import_module("mhnb_links")


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](../concepts.md#x)", "[a](../concepts.md#x)"),
        ("[a](#here)", "[a](#here)"),
        ("[a](https://example.org/a)", "[a](https://example.org/a)"),
        ("[a](../../notebooks/00_tour.ipynb)", "[a](/lessons/00_tour.ipynb)"),
        ("[a](../../notebooks/README.md#model)", "[a](/lessons/README.md#model)"),
        ("[the log](../../CHANGELOG.md)", "[the log](/changelog.md)"),
        ("[how](../../CONTRIBUTING.md)", "[how](https://host/mhnb/CONTRIBUTING.md)"),
        ("![a](../img/a.png)", "![a](../img/a.png)"),
        ("```text\n[a](../../CHANGELOG.md)\n```", "```text\n[a](../../CHANGELOG.md)\n```"),
    ],
)
def test_links_out_of_docs_are_replaced(link: str, expected: str) -> None:
    """A notebook is linked as a page, another file at the repository's address, and everything else stays."""
    assert links.replace_links(f"x\n\n{link}\n", "docs/how-to/a.md", "https://host/mhnb/") == f"x\n\n{expected}\n"


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[how](../../CONTRIBUTING.md)", "how (`CONTRIBUTING.md`)"),
        ("[`CONTRIBUTING.md`](../../CONTRIBUTING.md)", "`CONTRIBUTING.md`"),
    ],
)
def test_files_are_named_without_an_address(link: str, expected: str) -> None:
    """Without the address of a repository, a file is named and not linked."""
    assert links.replace_links(link, "docs/how-to/a.md", "") == expected


def test_a_page_of_the_notebooks_links_into_docs() -> None:
    """The table of the lessons, which is a page too, links to pages of docs/."""
    text = links.replace_links("[a](../docs/concepts.md) [b](00_tour.ipynb)", "notebooks/README.md", "")
    assert text == "[a](/concepts.md) [b](/lessons/00_tour.ipynb)"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("jax.make_mesh", "jax.make_mesh"),
        ("jax.distributed.initialize(...)", "jax.distributed.initialize"),
        ("device_put", "jax.device_put"),
        ("process_allgather", "jax.experimental.multihost_utils.process_allgather"),
    ],
)
def test_a_function_of_jax_leads_to_its_page(code: str, name: str) -> None:
    """A function of JAX has an address, by its full name or by its last part, with or without brackets."""
    assert links.jax_address(code) == f"{links.JAX_PAGES}{name}.html"


@pytest.mark.parametrize("code", ["devices", "local_devices", "jax.devices()[0]", "initialize", "mesh"])
def test_other_code_has_no_address(code: str) -> None:
    """Code that is not just a function of JAX has no address."""
    assert links.jax_address(code) is None
