"""What README.md shows is real: its YAML is a valid pipeline, its output is that of a night, its pictures differ in colours alone."""

from __future__ import annotations

import re
from pathlib import Path

from training.spec.reader.loader import check_file

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 115
MAX_YAML_LINES = 15


def test_yaml_of_the_readme_is_a_complete_pipeline_without_a_key_that_has_no_effect(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "orders.yaml").write_text(text, encoding="utf-8")

    spec, warnings = check_file(tmp_path / "orders.yaml")

    assert (spec.name, warnings) == ("orders", ())
    assert len(text.splitlines()) <= MAX_YAML_LINES


def test_lines_of_output_in_the_readme_are_of_the_night_in_the_manual_in_its_order() -> None:
    shown = [line.strip() for line in README[README.index("    services are up") :].split("\n\n")[0].splitlines()]
    night = [line.strip() for line in (ROOT / "docs" / "operating.md").read_text(encoding="utf-8").splitlines()]

    places = [night.index(line) for line in shown]
    assert places == sorted(places)
    assert len(shown) == 8


def test_readme_is_a_landing_page() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_pictures_of_a_night_for_light_and_dark_differ_in_their_colours_alone() -> None:
    light, dark = (
        re.sub(r"#[0-9a-f]{6}", "", (ROOT / "docs" / f"night-{name}.svg").read_text(encoding="utf-8")) for name in ("light", "dark")
    )

    assert light == dark
    assert 'role="img"' in light
    assert "<desc" in light
