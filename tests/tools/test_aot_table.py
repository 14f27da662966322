"""The table of the compile gate: what it lists, keeps and shows."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

from tools import aot, aot_table

RECORD = Path(__file__).parents[2] / "tools" / "records" / "compile_gate.jsonl"
ROW = aot_table.TableRow(
    capability=80, case="v1-d64-fwd", tile="128x32 w8 s2", key="k", work_ratio=1.0, registers=255
)


@pytest.mark.parametrize("capability", aot.SHARED_BYTES)
def test_the_record_has_every_launch_of_the_table_and_all_are_accepted(capability):
    tiles = {case.name: aot_table.tile_of(case) for case in aot_table.table_cases(capability)}
    of_all = aot_table.read_rows(RECORD)
    rows = {name: row for (chip, name), row in of_all.items() if chip == capability}
    assert {name: row.tile for name, row in rows.items()} == tiles
    assert all(row.is_accepted for row in rows.values())
    unclean = {name for name, row in rows.items() if not row.is_clean}
    reload = {f"{x}-{mask}" for _, x in aot_table.MEASURED for mask in ("ranges", "padding")}
    assert unclean == (reload if capability == 90 else set())
    assert {row.work_ratio for row in rows.values()} == {1.0}
    assert {row.loop_copies for row in rows.values()} == {0}


def test_a_row_is_measured_again_only_if_what_is_compiled_has_changed(tmp_path, monkeypatch):
    measured = []

    def measure(case, capability):
        measured.append(case.name)
        return replace(ROW, case=case.name, capability=capability, key=aot_table.case_key(case))

    monkeypatch.setattr(aot_table, "measure", measure)
    monkeypatch.setattr(aot_table, "case_key", lambda case: "first")
    path = tmp_path / "table.jsonl"
    arguments = [str(path), "80", "--match", "v1-d64", "--page", str(tmp_path / "page.md")]
    assert aot_table.main(arguments) == 0
    once = len(measured)
    assert once == 12  # four launches, three masks
    assert aot_table.main(arguments) == 0
    assert len(measured) == once
    monkeypatch.setattr(aot_table, "case_key", lambda case: "second")
    assert aot_table.main(arguments) == 0
    assert len(measured) == 2 * once
    assert len(aot_table.read_rows(path)) == once
    assert "12 launches, 12 clean" in (tmp_path / "page.md").read_text("utf-8")


@pytest.mark.parametrize(
    "waste", [{"work_ratio": 4 / 3}, {"loop_copies": 1}, {"loop_reloads": 1}, {"broken": "no"}]
)
def test_waste_is_shown_and_makes_the_command_fail(waste, tmp_path, monkeypatch):
    monkeypatch.setattr(aot_table, "case_key", lambda case: "k")
    bad = replace(ROW, **waste)
    assert not bad.is_clean
    (tmp_path / "table.jsonl").write_text(json.dumps(asdict(bad)) + "\n", encoding="utf-8")
    monkeypatch.setattr(aot_table, "table_cases", lambda capability: iter([CASE]))
    assert aot_table.main([str(tmp_path / "table.jsonl"), "80"]) == 1
    assert "1 launches, 1 clean" in aot_table.page([ROW])
    assert "1 launches, 0 clean" in aot_table.page([bad])


CASE = next(case for case in aot_table.table_cases(80) if case.name == ROW.case)


def test_a_broken_limit_is_named():
    facts = dict.fromkeys(aot.AotReport.__dataclass_fields__, 0) | {"name": "k", "capability": 100}
    aot.assert_within_limits(aot.AotReport(**facts))
    for broken, message in (
        ({"spill_bytes": 8}, "spills must be at most 0 bytes per thread, got 8"),
        ({"shared_bytes": 232_449}, "shared memory must be at most 232448 bytes, got 232449"),
        ({"tmem_columns": 768, "has_trap": True}, "at most 512 columns, got 768; must not contain"),
        ({"serializes_wgmma": True}, "wgmma must run asynchronously"),
    ):
        with pytest.raises(AssertionError, match=f"k on sm_100: .*{message}"):
            aot.assert_within_limits(aot.AotReport(**facts | broken))


def test_programs_of_a_multiprocessor_are_what_the_scarcest_resource_allows():
    few = {"threads": 256, "registers": 32, "shared_bytes": 1024}
    assert aot.resident_programs(80, **few) == 8  # threads
    assert aot.resident_programs(80, **few | {"registers": 255}) == 1
    assert aot.resident_programs(80, **few | {"registers": 128}) == 2
    assert aot.resident_programs(86, **few | {"shared_bytes": 49_152}) == 2
    assert aot.resident_programs(90, **few | {"shared_bytes": 232_448}) == 1
    assert aot.resident_programs(90, **few | {"shared_bytes": 232_449}) == 0
    assert aot.resident_programs(100, **few, tmem_columns=256) == 2
