"""The error codes: collected from the source, with where each is raised and what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import training.errors
from tools.reference.markdown import code, notice, table
from tools.reference.remedies import REMEDIES

SOURCES: Final = ("training", "plugins", "devstack")
CODE: Final = re.compile(r"[a-z][a-z_0-9]*\.[a-z_][a-z_0-9]*\Z")
WORD: Final = re.compile(r"[a-z][a-z_]*\Z")
"""A code of one word, `cardinality`: only the first argument of an error is taken for one."""
NOT_CODES: Final = re.compile(r".*\.(json|db|html|css|js|py|toml|yaml|parquet|ini|safetensors|ubj|onnx|csv|txt|npy|pid|lock|log|sock|io)\Z")
CODE_ARGUMENT: Final[Mapping[str, int]] = {
    **dict.fromkeys(("_fatal", "_fits", "_note", "_refuse", "_refused", "refusal", "result", "kind"), 0),
    **dict.fromkeys(("Finding", "_result", "problem"), 1),
    **dict.fromkeys(("_of_code", "problem_at"), 2),
}
"""Function to the position of the code among its arguments; errors of training.errors have it first."""
RAISED_AS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Problem", "Finding", "refusal", "problem_at", "_fatal", "_fits", "_note", "_refuse", "_refused"), "SpecError"),
    **dict.fromkeys(("Registry", "implementation", "imported"), "SpecError"),
    **dict.fromkeys(("CheckResult", "result", "_result"), "check of the validation report"),
    **dict.fromkeys(("Verdict", "LaunchStatus", "_of_code"), "outcome of an attempt"),
    "BadDayError": "SpecError",
    "problem": "answer of the REST API",
}
"""Function to what its code ends as."""
OTHER_PREFIXES: Final = ("nightshift", "devstack", "training", "importlib", "mlflow.genai", "mlflow.user", "google")
"""Of dotted names that are not codes: tags, modules."""
PLACES: Final = frozenset(
    {
        "alerts.webhook",
        "evaluate.metrics",
        "prepare.derive",
        "promote.canary",
        "data.weight",
        "train.activation_checkpointing",
        "train.class_weight",
        "train.gradient_compression",
        "train.model",
        "train.optimizer",
        "train.parallel",
        "train.placement",
        "train.precision",
    }
)
"""Keys of the YAML, which look like codes."""
METRICS: Final = frozenset({"training/data/validation/suite_batches.py", "training/data/validation/suite_profile.py"})
"""Files with names of Great Expectations' metrics, which look like codes."""
ALONE: Final = frozenset({"expectation.failed", "key.unused", "route.method", "route.unknown"})
"""Codes that are constants, with a first part that no other code has."""
IN_A_MESSAGE: Final = re.compile(r"\[([a-z_]+\.[a-z_]+)\] ")


@dataclass(slots=True)
class Found:
    """What the source says of one code."""

    files: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    hints: set[str] = field(default_factory=set)


def collect(root: Path) -> dict[str, Found]:
    """Return code to what the source says of it, sorted."""
    found: dict[str, Found] = {}
    loose: list[tuple[str, str]] = []
    errors = _exit_codes()
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            tree = ast.parse(path.read_bytes())
            scopes = _scopes(tree)
            for value in _in_messages(tree):
                found.setdefault(value, Found()).files.add(name)
            for value, call in _strings(tree):
                raised = call is not None and _called(call) in errors and _is_code_of(call, value)
                if not raised and (NOT_CODES.match(value) or not CODE.match(value)):
                    continue
                if call is None or not _is_code_of(call, value):
                    loose.append((value, name))
                    continue
                entry = found.setdefault(value, Found())
                entry.files.add(name)
                entry.classes.add(RAISED_AS.get(_called(call), _called(call)))
                entry.hints.update(_hints(call, scopes[call]))
    # Codes in tables and conditions, beside those that stand where they are raised.
    prefixes = {value.split(".")[0] for value in found}
    for value, name in loose:
        if (value.split(".")[0] in prefixes or value in ALONE) and value not in PLACES and name not in METRICS:
            found.setdefault(value, Found()).files.add(name)
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
        f"# Error codes\n{notice()}\n"
        "A message has the form `[code] what is wrong (what to do)`. Codes do not change between releases. "
        "Every problem of a YAML file is reported at once, with file and line.\n\n"
        "An ellipsis stands for a value that the message fills in. The number is the exit code of a stage or command that ends "
        "with the error.\n\n"
        + table(("code", "what to do", "ends as", "raised in"), rows)
        + "\n## Exit codes\n"
        + table(("exit code", "classes"), _by_exit(exits))
    )


def _strings(tree: ast.Module) -> Iterator[tuple[str, ast.Call | None]]:
    """Yield each string that looks like a code, with the call that it is an argument of."""
    calls: dict[ast.AST, ast.Call] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                for part in _branches(argument):
                    calls[part] = node
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if (CODE.match(node.value) or WORD.match(node.value)) and not node.value.startswith(OTHER_PREFIXES):
            yield node.value, calls.get(node)


def _in_messages(tree: ast.Module) -> Iterator[str]:
    """Yield codes that are written into a message: `[python.packages] …`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from IN_A_MESSAGE.findall(node.value)


def _branches(argument: ast.expr) -> Iterator[ast.expr]:
    if isinstance(argument, ast.IfExp):
        yield from (*_branches(argument.body), *_branches(argument.orelse))
    else:
        yield argument


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_code_of(call: ast.Call, value: str) -> bool:
    name = _called(call)
    if any(keyword.arg == "code" and _is(keyword.value, value) for keyword in call.keywords):
        return True
    position = 0 if name.endswith("Error") and name != "SpecError" else CODE_ARGUMENT.get(name)
    return position is not None and len(call.args) > position and _is(call.args[position], value)


def _is(argument: ast.expr, value: str) -> bool:
    return any(isinstance(part, ast.Constant) and part.value == value for part in _branches(argument))


def _hints(call: ast.Call, named: Mapping[str, set[str]]) -> set[str]:
    """Return the hints of a call: its keyword `hint`, or what follows code and message; a name stands for what the file assigns to it."""
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "hint"), None)
    if given is None and _called(call) in ("Finding", "_refused", "_fits") and len(call.args) == 4:
        given = call.args[3]
    if given is None:
        return set()
    found: set[str] = set()
    for part in _branches(given):
        found |= named.get(part.id, set()) if isinstance(part, ast.Name) else {_text(part)}
    return found - {""}


def _scopes(tree: ast.Module) -> dict[ast.Call, dict[str, set[str]]]:
    """Return call to the texts of the names that it sees: those that its function assigns, else the module's."""
    at_module = _assigned(tree.body)
    scopes = {node: at_module for node in ast.walk(tree) if isinstance(node, ast.Call)}
    # Functions within functions come later in the walk, and see what is around them.
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            seen = (scopes[calls[0]] if calls else {}) | _assigned(list(ast.walk(function)))
            scopes.update(dict.fromkeys(calls, seen))
    return scopes


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


def _exit_codes() -> dict[str, int]:
    kinds = {name: value for name, value in vars(training.errors).items() if isinstance(value, type)}
    return {name: int(kind.exit_code) for name, kind in kinds.items() if issubclass(kind, training.errors.NightshiftError)}


def _by_exit(exits: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(str(number), ", ".join(sorted(name for name in exits if exits[name] == number))) for number in sorted(set(exits.values()))]


def _escaped(text: str) -> str:
    """Return a text whose `<` and `*` are not markup; code between backticks stays as it is."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;").replace("*", "\\*") for number, part in enumerate(parts))
