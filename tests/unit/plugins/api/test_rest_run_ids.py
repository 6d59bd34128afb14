"""Ids of runs that Airflow takes and the store has no folder for."""

from __future__ import annotations

from urllib.parse import quote

from tests.unit.plugins.seeded_installation import DONE, Seeded


def test_odd_run_ids_are_refused_on_every_route_that_names_a_run(seeded: Seeded) -> None:
    for run_id in (".", "..", "r\n", "r\r", "r\x00", "a/b", "a b"):
        key = quote(f"search_ranking:{run_id}", safe="")
        paths = (f"/runs/{key}", f"/training-runs/{key}/metrics", f"/training-runs/{key}/checkpoints", f"/hpo/studies/{key}")
        for path in (*paths, f"/hpo/studies/{key}/trials/0/metrics", f"/compare?a={key}&b=search_ranking@1"):
            # A slash is another path.
            assert seeded.get(path).status_code in ({422, 404} if "/" in run_id else {422}), path
        restored = seeded.post(f"/training-runs/{key}/checkpoints/3/restore", {})
        assert restored.status_code in ({422, 404} if "/" in run_id else {422})


def test_every_other_id_of_airflows_is_looked_up(seeded: Seeded) -> None:
    for run_id in ("...", ".a", "a.", "~", "a" * 250):
        assert seeded.get(f"/runs/{quote(f'search_ranking:{run_id}', safe='')}").json()["code"] == "run.unknown", run_id
    assert seeded.get(f"/runs/{quote(f'search_ranking:{DONE}', safe='')}").status_code == 200
