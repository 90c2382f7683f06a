"""Links, anchors, examples and make targets of the documents exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def anchors_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def local_links() -> Iterator[tuple[Path, str]]:
    for path in DOCUMENTS:
        for target in LINK.findall(FENCE.sub("", text_of(path))):
            if "://" not in target and not target.startswith("mailto:"):
                yield path, target


@pytest.mark.parametrize(
    ("path", "target"),
    [pytest.param(*link, id=f"{link[0].name}-{link[1]}") for link in local_links()],
)
def test_a_link_leads_somewhere(path: Path, target: str) -> None:
    name, _, anchor = target.partition("#")
    there = (path.parent / name).resolve() if name else path
    assert there.exists(), f"{path.name} links to {target}"
    if anchor:
        assert anchor in anchors_of(there), f"{target}: no such heading"


def test_the_link_check_sees_links() -> None:
    assert ("README.md", "docs/ARCHITECTURE.md") in [(p.name, t) for p, t in local_links()]


def test_every_make_command_in_the_documents_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    named = {
        name
        for path in DOCUMENTS
        for name in re.findall(r"(?:`|^\s*)make ([a-z-]+)", text_of(path), re.MULTILINE)
    }
    assert {"demo", "test"} <= named <= targets


def test_the_example_in_the_readme_runs_as_it_stands(run_python) -> None:
    (example,) = (
        code for kind, code in FENCE.findall(text_of(ROOT / "README.md")) if kind == "python"
    )
    done = run_python(example, env={"EVENER_DEVICES": "cpu:2"})
    assert "Epoch 3/3" in done.stdout


def test_the_glossary_is_in_order() -> None:
    words = re.findall(r"^\*\*([^*]+)\.\*\*", text_of(ROOT / "docs/glossary.md"), re.MULTILINE)
    assert len(words) > 10
    assert words == sorted(words, key=str.lower)
