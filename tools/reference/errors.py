"""The error codes: collected from the source, with where each is raised and what to do."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import training.errors
from tools.reference import spec
from tools.reference.markdown import NOTICE, code, table
from tools.reference.remedies import REMEDIES
from training.spec.pipeline_spec import PipelineSpec

SOURCES: Final = ("training", "plugins", "devstack")
CODE: Final = re.compile(r"[a-z][a-z_0-9]*\.[a-z_][a-z_0-9]*\Z")
ANY: Final = re.compile(r"[a-z][a-z_0-9]*(\.[a-z_][a-z_0-9]*)?\Z")
"""Also a code of one word, `cardinality`, or one that looks like a file: only the first argument of an error is taken for one."""
NOT_CODES: Final = re.compile(
    r".*\.(json|db|html|css|js|py|toml|yaml|parquet|ini|safetensors|ubj|onnx|csv|txt|skops|npy|pid|lock|log|sock|io)\Z"
)
RAISED_AS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Problem", "Violation", "refusal", "problem_at", "_fatal", "_fits", "_note", "_refuse", "_refused"), "SpecError"),
    **dict.fromkeys(("Registry", "implementation", "imported", "spec_error"), "SpecError"),
    **dict.fromkeys(("CheckResult", "result", "_result"), "check of the validation report"),
    **dict.fromkeys(("AttemptEnd", "LaunchStatus", "_of_code"), "outcome of an attempt"),
    "BadDayError": "SpecError",
    "problem": "answer of the REST API",
}
"""Function to what its code ends as."""
OTHER_PREFIXES: Final = ("nightshift", "devstack", "training", "importlib", "mlflow.genai", "mlflow.user", "google")
"""Of dotted names that are not codes: tags, modules."""
METRICS: Final = frozenset({"training/validation/suites/batches.py", "training/validation/suites/table_numbers.py"})
"""Files with names of Great Expectations' metrics, which look like codes."""
ALONE: Final = frozenset({"expectation.failed", "key.unused", "route.method", "route.unknown"})
"""Codes that are constants, with a first part that no other code has."""
IN_A_MESSAGE: Final = re.compile(r"\[([a-z_]+\.[a-z_]+)\] ")


@dataclass(slots=True)
class CodeFacts:
    """What the source says of one code."""

    files: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    hints: set[str] = field(default_factory=set)


def collect(root: Path) -> dict[str, CodeFacts]:
    """Return code to what the source says of it, sorted."""
    found: dict[str, CodeFacts] = {}
    mentioned: list[tuple[str, str]] = []
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*.py")):
        file, tree = path.relative_to(root).as_posix(), ast.parse(path.read_bytes())
        for call, names in _calls(tree, _assigned(tree.body)):
            for value in _codes(call):
                entry = found.setdefault(value, CodeFacts())
                entry.files.add(file)
                entry.classes.add(RAISED_AS.get(_called(call), _called(call)))
                entry.hints |= _hints(call, names)
        for text in (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)):
            mentioned += [(text, file)] if _is_code(text) else []
            for value in IN_A_MESSAGE.findall(text):
                found.setdefault(value, CodeFacts()).files.add(file)
    # Codes in tables and conditions, beside those that stand where they are raised.
    prefixes = {value.split(".")[0] for value in found}
    keys = {f"{path}.{key.name}" for path, section in spec.sections(PipelineSpec) for key in spec.keys_of(section)}
    for value, file in mentioned:
        if (value.split(".")[0] in prefixes or value in ALONE) and value not in keys and file not in METRICS:
            found.setdefault(value, CodeFacts()).files.add(file)
    return dict(sorted(found.items()))


def page(root: Path) -> str:
    """Return the page.

    Raises:
        ValueError: a code has neither a hint in the source nor an entry in `REMEDIES`, or an entry is of no code.
    """
    found = collect(root)
    if missing := sorted(value for value, entry in found.items() if not entry.hints and value not in REMEDIES):
        raise ValueError(f"no hint in the source; add a remedy to tools/reference/remedies.py: {', '.join(missing)}")
    if unknown := sorted(REMEDIES.keys() - found.keys()):
        raise ValueError(f"tools/reference/remedies.py has codes that the source does not: {', '.join(unknown)}")
    exits = _exit_codes()
    by_exit = [(str(number), ", ".join(sorted(name for name in exits if exits[name] == number))) for number in sorted(set(exits.values()))]
    rows = []
    for value, entry in found.items():
        remedies = [REMEDIES[value]] if value in REMEDIES else []
        remedies += sorted(entry.hints)[: 3 if not remedies else 2]
        shown = {
            f"{exits[name]} {name}" if name in exits else name for name in entry.classes if name in exits or name in RAISED_AS.values()
        }
        ended = ", ".join(sorted(shown))
        rows.append((code(value), _escaped("; ".join(remedies)), ended, "<br>".join(map(code, sorted(entry.files)))))
    return (
        f"# Error codes\n{NOTICE}\n"
        "A message has the form `[code] what is wrong (what to do)`. Codes do not change between releases. "
        "Every problem of a YAML file is reported at once, with file and line.\n\n"
        "An ellipsis stands for a value that the message fills in. The number is the exit code of a stage or command that ends "
        "with the error.\n\n"
        + table(("code", "what to do", "ends as", "raised in"), rows)
        + "\n## Exit codes\n"
        + table(("exit code", "classes"), by_exit)
    )


def _calls(node: ast.AST, names: Mapping[str, set[str]]) -> Iterator[tuple[ast.Call, Mapping[str, set[str]]]]:
    """Yield each call with the texts of the names that it sees: those that the functions around it assign, else the module's."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, names
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _calls(child, {**names, **_assigned(ast.walk(child))} if is_function else names)


def _codes(call: ast.Call) -> list[str]:
    """Return the codes that a call is given: as `code`, or as the first argument that is one, where it raises or describes an error."""
    name = _called(call)
    given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    if name in RAISED_AS or any(keyword.arg == "hint" for keyword in call.keywords):
        given += call.args[name == "spec_error" :]
    elif name.endswith("Error") and name != "SpecError":
        given += call.args[:1]
    for argument in given:
        texts = [part.value for part in _branches(argument) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        codes = [text for text in texts if _is_code(text) or (name in _exit_codes() and ANY.match(text))]
        if codes:
            return codes
    return []


def _is_code(text: str) -> bool:
    return bool(CODE.match(text)) and not NOT_CODES.match(text) and not text.startswith(OTHER_PREFIXES)


def _branches(argument: ast.expr) -> Iterator[ast.expr]:
    if isinstance(argument, ast.IfExp):
        yield from (*_branches(argument.body), *_branches(argument.orelse))
    else:
        yield argument


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _hints(call: ast.Call, named: Mapping[str, set[str]]) -> set[str]:
    """Return the hints of a call: its keyword `hint`, or what follows code and message; a name stands for what the file assigns to it."""
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "hint"), None)
    if given is None and _called(call) in ("Violation", "_refused", "_fits") and len(call.args) == 4:
        given = call.args[3]
    if given is None:
        return set()
    found: set[str] = set()
    for part in _branches(given):
        found |= named.get(part.id, set()) if isinstance(part, ast.Name) else {_text(part)}
    return found - {""}


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, set[str]]:
    """Return name to the texts that these statements assign to it."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    found.setdefault(name.id, set()).update(_text(part) for part in _branches(value))
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return f"{left}{right}" if left and right else ""
    return ""


@functools.cache
def _exit_codes() -> dict[str, int]:
    kinds = {name: value for name, value in vars(training.errors).items() if isinstance(value, type)}
    return {name: int(kind.exit_code) for name, kind in kinds.items() if issubclass(kind, training.errors.NightshiftError)}


def _escaped(text: str) -> str:
    """Return a text whose `<` and `*` are not markup; code between backticks stays as it is."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;").replace("*", "\\*") for number, part in enumerate(parts))
