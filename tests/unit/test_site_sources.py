"""Pages of the site that are made from files outside of docs/, and links between all pages."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from evener.doctor.rules import has_page, known_codes

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCES = tool("site_sources")
PATHS = SOURCES.site_paths()


@pytest.mark.parametrize(
    ("name", "link", "on_site"),
    [
        ("docs/plan.md", "pipelines.md#stages", "pipelines.md#stages"),
        ("docs/api.md", "../README.md#use", "project/README.md#use"),
        ("docs/commands/run.md", "../../src/evener/doctor/pages/DOC-605.md", "../codes/DOC-605.md"),
        ("docs/devices.md", "../src/evener/doctor/pages/errors.md", "codes/index.md"),
        ("docs/custom_loops.md", "../examples/custom_loop.py", "examples/custom_loop.py.md"),
        ("CONTRIBUTING.md", "docs/decisions/", "../decisions/index.md"),
        ("CHANGELOG.md", "https://semver.org/x.md", "https://semver.org/x.md"),
        ("docs/plan.md", "#json", "#json"),
        ("docs/plan.md", "absent.md", "absent.md"),
    ],
)
def test_a_link_leads_to_the_page_of_the_site(name: str, link: str, on_site: str) -> None:
    assert SOURCES.linked(f"See [it]({link}).", name, PATHS) == f"See [it]({on_site})."


def test_code_keeps_its_brackets() -> None:
    code = "```python\nx[0](../README.md)\n```\n"
    assert SOURCES.linked(f"[it](../README.md)\n{code}", "docs/api.md", PATHS).endswith(code)


def test_every_code_is_listed_and_linked_if_it_has_a_page() -> None:
    text = SOURCES.added_pages(PATHS)["codes/index.md"]
    rows = re.findall(r"^\| (?:\[([A-Z]+-\d+)\]\(\1\.md\)|([A-Z]+-\d+)) \|", text, re.MULTILINE)
    linked = {code for code, _ in rows} - {""}
    plain = {code for _, code in rows} - {""}
    assert len(linked) > 70
    assert set(known_codes()) <= linked | plain
    assert all(has_page(code) for code in linked)


def test_every_example_and_document_has_a_page() -> None:
    pages = SOURCES.added_pages(PATHS)
    assert "import evener" in pages["examples/digits.py.md"]
    assert {"project/README.md", "project/LICENSE.md", "examples/machines/slurm.sh.md"} <= set(
        pages
    )
    assert "](0001-one-owner-per-variable.md)" in pages["decisions/index.md"]


@pytest.mark.parametrize(
    ("page", "loaded"),
    [
        ('<script src="https://unpkg.com/x"></script>', ["https://unpkg.com/x"]),
        ('<link rel="stylesheet" href=//fonts.example.org/css>', ["//fonts.example.org/css"]),
        ('<img alt="a" src="http://example.org/a.png">', ["http://example.org/a.png"]),
        ('<a href="https://semver.org">a</a><script src="assets/b.js"></script>', []),
    ],
)
def test_what_a_page_loads_from_the_network_is_seen(page: str, loaded: list[str]) -> None:
    assert SOURCES.loaded_from_network(page) == loaded
