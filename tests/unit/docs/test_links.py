"""Links of the documentation: each leads to a file or a heading that is there, and the index has every page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("reference/*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)[^)]*\)|(?:src|srcset|href)=\"([^\"\s]+)\"")
MENTION = re.compile(
    r"(?<![\w/.-])((?:docs|benchmarks|devstack|docker|plugins|tests|tools|training)/[\w./-]*[\w-]\.(?:md|svg|png|py|json|yaml|html|Dockerfile)\b)"
)
MADE = re.compile(r"^```\w+\n(?:# |<!-- )([\w/]+\.\w+)", re.MULTILINE)
"""The file that a block of docs/extending.md makes (test_extending.py)."""
EXTERNAL = re.compile(r"[a-z][a-z+.-]*:")


def prose(text: str) -> str:
    """Return a page without its code, in which brackets are not links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(`+).*?\1", "", text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(path: Path, root: Path = ROOT) -> list[str]:
    text = path.read_text(encoding="utf-8")
    dead = []
    for match in LINK.finditer(prose(text)):
        target = match[1] or match[2]
        if EXTERNAL.match(target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    made = set(MADE.findall(text))
    return dead + [name for name in MENTION.findall(text) if not (root / name).exists() and name not in made]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_has_a_target(path: Path) -> None:
    assert dead_links(path) == []


def test_dead_link_dead_anchor_and_dead_mention_are_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "# A title of `a`\n[x](gone.md) [y](#a-title-of-a) [z](#gone) [w](a.md#a-title-of-a) ![p](gone.svg) `[c](no_link.md)`\n"
        '<img src="gone.png"> see docs/gone.md, `training/gone.py`, tests/unit, [site](https://example.com)\n',
        encoding="utf-8",
    )

    assert dead_links(page, tmp_path) == ["gone.md", "#gone", "gone.svg", "gone.png", "docs/gone.md", "training/gone.py"]


def test_index_and_navigation_of_the_site_have_every_page() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in PAGES if path.is_relative_to(DOCS)}
    linked = {target.partition("#")[0] for target, _ in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))}
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    assert pages - linked == {"index.md"}
    assert pages == set(_files(navigation))


def test_site_is_built_without_a_warning_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    command = [f"{sys.prefix}/bin/mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, capture_output=True)

    text = (tmp_path / "site" / "reference" / "spec.html").read_text(encoding="utf-8")
    loaded = re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=\"(https?://[^\"]+)", text)
    assert "early_stopping" in text
    assert loaded == []


def _files(entries: object) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    parts = entries.values() if isinstance(entries, dict) else entries
    return [name for part in parts for name in _files(part)]  # type: ignore[attr-defined]
