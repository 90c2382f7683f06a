"""Pages of the documentation site that are no files in docs/, and links between all of them.

The site shows the documents of the whole repository: those of docs/ under their own names, all
others under the names of `site_paths`. Links are written for the repository, where they can be
followed too; `linked` rewrites them for the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
_CODES = "src/evener/doctor/pages"
# Files that are linked, but are no documents; they are shown as text.
_TEXTS = (
    "LICENSE",
    "src/evener/plan/plan.schema.json",
)
_LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".toml": "toml", ".json": "json"}
_NOTEBOOK = ".ipynb"
_FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
_LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\s\"'>]+)"
)
_HEADER = "| code | when |\n|---|---|"
_ROW_OF_CODE = re.compile(r"^\| ([A-Z]+-\d{3}) \|", re.MULTILINE)


def site_paths() -> dict[str, str]:
    """Return the site's path of each document of the repository.

    Returns:
        Paths in the repository, each with the path in the site's sources. A folder has the path of
        its list.
    """
    paths = {f"docs/{name}": name for name in _names(ROOT / "docs", "*")}
    paths |= {
        f"{_CODES}/{name}": f"codes/{Path(name).name}" for name in _names(ROOT / _CODES, "*.md")
    }
    paths |= {
        f"examples/{name}": f"examples/{name}.md"
        for name in _names(ROOT / "examples", "*")
        if Path(name).suffix in (*_LANGUAGES, _NOTEBOOK)
    }
    paths |= {name: f"project/{Path(name).name}.md" for name in _TEXTS}
    paths |= {path.name: f"project/{path.name}" for path in sorted(ROOT.glob("*.md"))}
    paths[f"{_CODES}/errors.md"] = "codes/index.md"
    paths["docs/decisions"] = "decisions/index.md"
    return paths


def _names(folder: Path, pattern: str) -> Iterator[str]:
    for path in sorted(folder.rglob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix()


def added_pages(paths: Mapping[str, str]) -> dict[str, str]:
    """Return the Markdown of each page that is not a file in docs/.

    Args:
        paths: Result of `site_paths`.

    Returns:
        Texts of the pages by their paths in the site.
    """
    pages = {"decisions/index.md": _decisions()}
    for name, page in paths.items():
        if name.startswith("docs/"):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        pages[page] = linked(text, name, paths) if name.endswith(".md") else _listing(name, text)
    pages["codes/index.md"] = _codes(pages["codes/index.md"], pages)
    return pages


def _codes(text: str, pages: Mapping[str, str]) -> str:
    """Return the list of codes with links to their pages, and with the findings of the doctor."""
    paged = {Path(page).stem for page in pages if page.startswith("codes/")} - {"index"}
    listed = set(_ROW_OF_CODE.findall(text))
    linked_rows = _ROW_OF_CODE.sub(
        lambda row: f"| [{row[1]}]({row[1]}.md) |" if row[1] in paged else row[0], text
    )
    titles = [pages[f"codes/{code}.md"].partition("\n")[0] for code in sorted(paged - listed)]
    found = [
        f"| [{code}]({code}.md) | {title} |"
        for code, _, title in (text.lstrip("# ").partition(": ") for text in titles)
    ]
    return "\n".join(
        [linked_rows.rstrip(), "", "## Findings of the doctor", "", _HEADER, *found, ""]
    )


def _listing(name: str, text: str) -> str:
    if name.endswith(_NOTEBOOK):
        return _notebook(name, text)
    language = _LANGUAGES.get(PurePosixPath(name).suffix, "text")
    return f"# {name}\n\n````{language}\n{text.rstrip()}\n````\n"


def _notebook(name: str, text: str) -> str:
    """Return the cells of a notebook below one another."""
    parts = [f"The cells of the notebook `{name}`."]
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        is_text = cell["cell_type"] == "markdown"
        parts.append(source if is_text else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


def _decisions() -> str:
    rows = [
        (path.relative_to(ROOT / "docs/decisions").as_posix(), _title(path))
        for path in sorted((ROOT / "docs/decisions").rglob("*.md"))
    ]
    now = [f"- [{title}]({name})" for name, title in rows if "/" not in name]
    archive = [f"- [{title}]({name})" for name, title in rows if "/" in name]
    replaced = ["", "## Replaced by later ones", "", *archive] if archive else []
    return "\n".join(["# Decisions", "", *now, *replaced, ""])


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def linked(text: str, name: str, paths: Mapping[str, str]) -> str:
    """Return a document with its links as they are on the site.

    Args:
        text: Markdown of the document.
        name: Path of the document in the repository.
        paths: Result of `site_paths`.
    """
    pieces = _FENCE.split(text)
    # Every second piece is a block of code.
    pieces[::2] = [
        _LINK.sub(lambda link: f"{link[1]}({_target(link[2], name, paths)})", piece)
        for piece in pieces[::2]
    ]
    return "".join(pieces)


def _target(target: str, name: str, paths: Mapping[str, str]) -> str:
    path, _, anchor = target.partition("#")
    if not path or "://" in target or target.startswith("mailto:"):
        return target
    there = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if there not in paths:
        # MkDocs reports the link.
        return target
    start = posixpath.dirname(paths[name])
    new = posixpath.relpath(paths[there], start or ".")
    return f"{new}#{anchor}" if anchor else new


def loaded_from_network(page: str) -> list[str]:
    """Return the addresses that a page loads by itself, not those that a reader may follow.

    Args:
        page: HTML of the page.
    """
    return _LOADED.findall(page)
