"""What a stage is to do: the work that its fingerprint names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One stage's work of one run."""

    fingerprint: str
    inputs: Mapping[str, str]
    parameters: Mapping[str, object]
    code_version: str = ""
    """What stands for the code in the fingerprint; empty for what acts on the world."""
    code_files: Mapping[str, str] = field(default_factory=dict)
    """File to SHA-256: what the code version is made of; empty where it is the digest of an image."""
