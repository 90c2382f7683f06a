"""Hooks of MkDocs: pages from outside of docs/, of the commands and of the public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import site_sources

import evener

_PATHS = site_sources.site_paths()
_NAMES = {page: name for name, page in _PATHS.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files in docs/.

    Args:
        files: Files of docs/.
        config: Settings of the site.
    """
    pages = site_sources.added_pages(_PATHS) | _api_pages()
    pages["reference/options.md"] = _commands()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page of docs/ that lead out of docs/.

    Args:
        markdown: Text of the page.
        page: The page.
        config: Settings of the site.
        files: All files of the site.
    """
    if page.file.generated_by is not None:
        return markdown
    return site_sources.linked(markdown, f"docs/{page.file.src_uri}", _PATHS)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if a page of the site loads anything from the network.

    Args:
        config: Settings of the site.
    """
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        for loaded in site_sources.loaded_from_network(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.name} loads {loaded}: the site has to work offline.")


def _commands() -> str:
    words = ["typer", "evener.cli", "utils", "docs", "--name", "evener", "--title", "All options"]
    made = subprocess.run(
        [sys.executable, "-m", *words], check=True, capture_output=True, text=True
    )
    return made.stdout


def _api_pages() -> dict[str, str]:
    modules = ["evener", *(f"evener.{package}" for package in evener._PACKAGES)]
    loaded = griffe.load("evener", search_paths=[str(site_sources.ROOT / "src")])
    return {
        f"reference/{name}.md": _api_page(name, module)
        for name in modules
        for module in [loaded[name.partition(".")[2]] if "." in name else loaded]
    }


def _api_page(home: str, module: griffe.Object | griffe.Alias) -> str:
    names = [f"::: {_identifier(module[str(name)], f'{home}.{name}')}" for name in module.exports]
    return "\n\n".join([f"# {home}", *names]) + "\n"


def _identifier(member: griffe.Object | griffe.Alias, name: str) -> str:
    if not member.is_module:
        return name
    # griffe takes a module for the function of the same name that its package imports.
    target = member.final_target if member.is_alias else member
    return target.parent.imports[target.name]
