"""The keys of placement.yaml, the file that describes a cluster, from its models."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nightshift.execution.kubernetes.config import VARIABLE, Cluster
from tools.reference.markdown import notice
from tools.reference.spec import section_text, sections
from training.spec.yaml_reader import read_document

SHIPPED: Final = "docker/kubernetes/placement.yaml"


def page(root: Path) -> str:
    """Return the page.

    Raises:
        ValueError: a key without a unit, a meaning or an example.
    """
    documents = [read_document((root / SHIPPED).read_bytes(), SHIPPED).value]
    head = (
        f"# Keys of placement.yaml\n{notice()}\n"
        f"The file that `{VARIABLE}` names describes a cluster ([Kubernetes](../kubernetes.md)). Begin with a copy of `{SHIPPED}`. "
        "Unknown keys are refused. `nightshift doctor backend` reports every problem with its line.\n\n"
        "A default of *required* means that the key has none. *none* means that it is absent unless you write it.\n"
    )
    return head + "".join(section_text(path or "top level", section, path, documents) for path, section in sections(Cluster))
