"""The transform `text`: n-grams hashed into buckets, against a count of its own, and how they reach the model."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from training.data.features import text_ngrams as text_grams
from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.errors import DataError

BUCKETS = 1024
HELLO = "\u0928\u092e\u0938\u094d\u0924\u0947"
"""A word of Hindi: its vowel signs are marks."""


def fitted(texts: list[Any] | pd.Series[Any], **settings: Any) -> FittedTransforms:
    plan = FeaturePlan(name="note", settings=EncoderSettings(kind="text", **({"buckets": BUCKETS} | settings)))
    transforms = FittedTransforms.fit(pd.DataFrame({"note": texts}), derived=[], features=[plan])
    again = FittedTransforms.from_json(transforms.to_json())
    assert again.to_json() == transforms.to_json()
    return again


def cells(texts: list[Any], **settings: Any) -> NDArray[np.float32]:
    """Return the model's input, [n, buckets]."""
    return fitted(["a text"], **settings).apply(pd.DataFrame({"note": pd.Series(texts, dtype=object)}), serving=True).floats


def counted(grams: list[str]) -> list[float]:
    """Return the cells that these n-grams give."""
    found = [0.0] * BUCKETS
    for gram in grams:
        found[int.from_bytes(hashlib.blake2b(gram.encode(), digest_size=8).digest(), "big") % BUCKETS] += 1
    return found


CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("the cat, the Cat", {}, ["the", "cat", "the", "cat"]),
    ("the cat sat", {"ngrams": (1, 2)}, ["the", "cat", "sat", "the cat", "cat sat"]),
    ("the cat sat", {"ngrams": (2, 3)}, ["the cat", "cat sat", "the cat sat"]),
    ("Cat", {"lowercase": False}, ["Cat"]),
    ("under_score-d, 3.5", {}, ["under", "score", "d", "3", "5"]),
    ("one", {"ngrams": (2, 2)}, []),
    ("ab  a\n", {"tokens": "characters", "ngrams": (1, 2)}, ["a", "b", " ", "a", "ab", "b ", " a"]),
    ("Cafe\u0301", {}, ["caf\u00e9"]),
    ("Cafe\u0301", {"lowercase": False}, ["Caf\u00e9"]),
    ("J\u030c", {"tokens": "characters"}, ["\u01f0"]),
    ("\u0130", {"tokens": "characters"}, ["i", "\u0307"]),
    (f"{HELLO} {HELLO}!", {}, [HELLO, HELLO]),
    ("\U0001f600 ok", {}, ["ok"]),
    ("\U0001f600", {"tokens": "characters"}, ["\U0001f600"]),
    ("", {}, []),
    (" \u00a0\t", {"tokens": "characters"}, []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "settings", "grams"), CASES)
def test_bucket_holds_the_number_of_the_n_grams_with_its_hash(text: str, settings: dict[str, Any], grams: list[str]) -> None:
    assert cells([text], **settings).tolist() == [counted(grams)]


def test_absent_keys_are_128_buckets_of_words_in_small_letters() -> None:
    settings = {"buckets": 128, "tokens": "words", "ngrams": (1, 1), "lowercase": True, "scale": "count"}
    assert fitted(["a text"], buckets=None).to_json() == fitted(["a text"], **settings).to_json()


def test_share_is_that_of_all_n_grams_of_the_text_and_0_for_an_empty_one() -> None:
    found = cells(["a b a b", "a", ""], scale="share")
    assert found.tolist() == [[count / 4 for count in counted(["a", "b", "a", "b"])], counted(["a"]), [0.0] * BUCKETS]


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA])
def test_missing_text_has_no_n_grams_beside_others_and_alone(missing: Any) -> None:
    assert cells(["a", missing, "b"]).tolist() == [counted(["a"]), counted([]), counted(["b"])]
    assert cells([missing]).tolist() == [counted([])]


def test_rows_do_not_depend_on_those_around_them() -> None:
    texts = [f"word{number % 97} of {number}" for number in range(3000)]
    together = cells(texts, ngrams=(1, 2))
    assert (together[::-1] == cells(texts[::-1], ngrams=(1, 2))).all()
    assert (together[2500] == cells([texts[2500]], ngrams=(1, 2))[0]).all()


def test_each_bucket_is_an_input_before_the_ids_and_other_floats_keep_their_place() -> None:
    frame = pd.DataFrame({"c": ["x", "y"], "note": ["a", "b b"], "n": [1.0, 2.0]})
    kinds = {"c": "category", "note": "text", "n": "number"}
    plans = [FeaturePlan(name=name, settings=EncoderSettings(kind=kind, buckets=3)) for name, kind in kinds.items()]
    transforms = FittedTransforms.fit(frame, derived=[], features=plans)
    assert [entry.name for entry in transforms.layout] == ["note.0", "note.1", "note.2", "n", "c"]
    matrix = transforms.apply(frame, serving=False)
    assert matrix.floats[:, :3].sum(axis=1).tolist() == [1, 2]
    assert matrix.floats[:, 3].tolist() == [1, 2]
    assert matrix.ints[:, 0].tolist() == [1, 2]
    assert transforms.inputs(serving=True) == ("c", "n", "note")


@pytest.mark.parametrize(
    ("column", "code"),
    [
        (pd.Series([1, 2]), "schema.type"),
        (pd.Series(["a", 1], dtype=object), "schema.type"),
        (pd.Series([None, None], dtype=object), "data.all_missing"),
    ],
)
def test_column_without_texts_is_refused(column: pd.Series[Any], code: str) -> None:
    with pytest.raises(DataError) as caught:
        fitted(column)
    assert caught.value.code == code


@pytest.mark.parametrize("scale", ["count", "share"])
@pytest.mark.parametrize("ngrams", [(1, 1), (2, 5), (8, 8)])
def test_n_grams_of_many_texts_are_those_of_one_text_at_a_time(
    monkeypatch: pytest.MonkeyPatch, ngrams: tuple[int, int], scale: str
) -> None:
    random = np.random.default_rng(7)
    alphabets = ["ab ", "abc\u00e9\u0301 \ud800", "".join(map(chr, range(0x1F000, 0x1F900))) + "\U0010ffff  "]
    texts = ["".join(random.choice(list(alphabets[row % 3]), random.integers(0, 60))) for row in range(300)]
    settings = {"tokens": "characters", "ngrams": ngrams, "scale": scale}
    alone = [cells([text], **settings)[0].tolist() for text in texts]
    for limit in (500, text_grams.CHUNK_CHARACTERS):
        monkeypatch.setattr(text_grams, "FEW_CHARACTERS", 0)
        monkeypatch.setattr(text_grams, "CHUNK_CHARACTERS", limit)
        assert cells([*texts, None], **settings).tolist() == [*alone, [0.0] * BUCKETS]
