"""A storage that does not keep its word is found out before anything rests on it."""

from pathlib import Path

import pytest

from training.store.bucket import Bucket
from training.store.probe import problems_of


def test_a_folder_keeps_all_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    assert [problem for _, problem in problems_of(Bucket(str(tmp_path)))] == [""] * 4
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class IgnoresTheCondition(Bucket):
    def create(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


class LooksThenWrites(Bucket):
    def create(self, key: str, data: bytes) -> bool:
        if self.exists(key):
            return False
        self.put(key, data)
        return True


@pytest.mark.parametrize(
    ("kind", "said"), [(IgnoresTheCondition, "the condition is ignored"), (LooksThenWrites, "got the answer that they won")]
)
def test_a_storage_without_conditional_create_is_found_out(tmp_path: Path, kind: type[Bucket], said: str) -> None:
    found = [problem for _, problem in problems_of(kind(str(tmp_path))) if problem]
    assert any(said in problem for problem in found), found
