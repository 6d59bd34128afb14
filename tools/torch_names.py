"""Which names of torch this project uses that another version of torch lacks: python -m tools.torch_names torch-2.11.0-….whl [FILES …]

A wheel of any platform has the Python sources and the stubs of the compiled parts, and nothing of it is run. Asked is whether each dotted
name of ours (`torch.optim.Muon`, `dist.new_group`) is in its module there, and whether each word of files that use torch (methods,
keywords) is anywhere. What the sources of the installed torch lack too is left out. Exit code 1 where a name is absent.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
OURS: Final = ("training", "benchmarks/gpu", "tests/gpu")
BUILT_IN: Final = (int, float, str, bytes, list, dict, set, tuple, io.TextIOWrapper)
"""What these have may be a word of torch too."""
STUBS: Final = "torch/_C/"
"""Of what is compiled: `torch.empty` is in no Python source."""
_WORD: Final = re.compile(r"[A-Za-z_]\w*")

Sources = Mapping[str, str]
"""Path below site-packages, of a Python source or a stub, to its text."""


def sources_of(place: Path) -> dict[str, str]:
    """Return torch's sources in a wheel, or in a folder like site-packages."""
    if place.is_file():
        with zipfile.ZipFile(place) as archive:
            names = [name for name in archive.namelist() if name.startswith("torch/") and name.endswith((".py", ".pyi"))]
            return {name: archive.read(name).decode() for name in names}
    files = (path for path in (place / "torch").rglob("*") if path.suffix in (".py", ".pyi"))
    return {path.relative_to(place).as_posix(): path.read_text(encoding="utf-8") for path in files}


class Names(ast.NodeVisitor):
    """The dotted names of torch in one file, with the first line of each; its words, but for those of other modules; what it defines."""

    def __init__(self, text: str) -> None:
        self.dotted: dict[str, int] = {}
        self.words: dict[str, int] = {}
        self.defined: set[str] = set()
        self._aliases: dict[str, str] = {}
        self._others: set[str] = set()
        self.visit(ast.parse(text))

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            if name.name.partition(".")[0] == "torch":
                self._aliases[name.asname or "torch"] = name.name if name.asname else "torch"
                self.dotted.setdefault(name.name, node.lineno)
            else:
                self._others.add(name.asname or name.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").partition(".")[0] == "torch":
            for name in node.names:
                self._aliases[name.asname or name.name] = f"{node.module}.{name.name}"
                self.dotted.setdefault(f"{node.module}.{name.name}", node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, value = [node.attr], node.value
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        root = value.id if isinstance(value, ast.Name) else ""
        if root in self._aliases:
            self.dotted.setdefault(".".join([self._aliases[root], *reversed(parts)]), node.lineno)
        if isinstance(node.ctx, ast.Store):
            self.defined.add(node.attr)
        elif root not in self._others:
            self.words.setdefault(node.attr, node.lineno)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.defined.add(node.target.id)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.defined |= {node.name, *(argument.arg for argument in (*node.args.args, *node.args.kwonlyargs))}
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg is not None:
            self.words.setdefault(node.arg, node.value.lineno)
        self.generic_visit(node)


def words_in(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in _WORD.findall(text)}


class Torch:
    """What one version of torch has."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._compiled = words_in(text for path, text in sources.items() if path.startswith(STUBS))
        self.words = words_in(sources.values())
        self._words_of: dict[str, set[str]] = {}

    def has(self, dotted: str) -> bool:
        """Return whether a name's last part is in the module, or below the package, that its first parts lead to."""
        parts = dotted.split(".")
        place = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            if f"{place}/{part}/__init__.py" in self._sources or f"{place}/{part}.py" in self._sources:
                place = f"{place}/{part}"
                continue
            return all(word in self._compiled or word in self._words(place) for word in parts[number:])
        return True

    def _words(self, place: str) -> set[str]:
        """Return the words of a module. A package gives on names of the modules in it, and torch itself those of its compiled part."""
        if place not in self._words_of:
            own = f"{place}/__init__.py" if place == "torch" else f"{place}/"
            texts = (text for path, text in self._sources.items() if path.startswith(own) or path == f"{place}.py")
            self._words_of[place] = words_in(texts)
        return self._words_of[place]


def absent(texts: Mapping[str, str], there: Torch, installed: Torch) -> Iterator[str]:
    """Yield what a version of torch lacks and the installed one has, with the place of its first use in each file.

    Args:
        texts: path of each file of ours to its text.
    """
    found = {path: Names(text) for path, text in texts.items()}
    own = {word for names in found.values() for word in names.defined} | {word for kind in BUILT_IN for word in dir(kind)}
    for path, names in found.items():
        if not names.dotted:
            continue
        yield from (f"{path}:{line}: {name}" for name, line in names.dotted.items() if installed.has(name) and not there.has(name))
        new = {word: line for word, line in names.words.items() if word in installed.words and word not in there.words | own}
        yield from (f"{path}:{line}: .{word}" for word, line in new.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("torch", type=Path, help="a wheel of torch, or a folder like site-packages")
    parser.add_argument("files", nargs="*", type=Path, help=f"default: those of {', '.join(OURS)}")
    given = parser.parse_args()
    import torch

    installed = Torch(sources_of(Path(torch.__file__).parents[1]))
    files = given.files or [path for folder in OURS for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = {str(path): path.read_text(encoding="utf-8") for path in files}
    found = list(absent(texts, Torch(sources_of(given.torch)), installed))
    for line in found:
        print(line)
    print(f"{len(found)} names of {len(files)} files are absent from {given.torch.name}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
