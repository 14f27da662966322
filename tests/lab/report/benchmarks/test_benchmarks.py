"""Benchmark records in a report and in a README, from made-up numbers."""

import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.records.results import read_benchmarks
from diffattn.lab.report.benchmarks.tables import targets_in_words
from diffattn.lab.report.build import build_report
from tools.pages.bench_tables import markdown, replace_tables


def test_markdown_names_t_tc_run_and_every_miss(bench_result):
    text = markdown(bench_result)
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("| Shape"))
    row = next(line for line in lines if "N512" in line)
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    expected = {
        "T (SDPA)": "10.0 ms", "TC": "9.00 ms chunked", "DIFF": "9.60 ms chunked",
        "DIFF / T": "0.96× (0.91 to 1.01)", "TC / T": "0.90×", "DIFF / TC": "1.07× (1.02 to 1.12)",
        "Peak memory, DIFF / T": "1.50×", "Targets": "pass",
    }  # fmt: skip
    assert cells.items() >= expected.items()
    assert "short by 0.06: chunked, forward at most 1.05 × T" in text
    assert "8,000 (chunked)" in text
    assert "0.977×" in text
    assert "51,228, 46,811 (0.914×)" in text  # the paper's, beside the same size and length
    assert lines[-1].startswith("cpu-00c0ffee: Made-up <processor>, 1 thread, torch 0.0")
    assert lines[-1].endswith("2001-02-03, commit c0ffeec0ffee, with uncommitted files.")


def test_marks_choose_and_generate(bench_result, tmp_path):
    bench_result.write(tmp_path / "results" / "cpu.json")
    text = (
        "before\n<!-- bench: results/cpu.json suite=ops N=512,1024 -->\nstale\n<!-- /bench -->\n"
        "between\n<!-- bench: results/cpu.json suite=models -->\n<!-- /bench -->\nafter\n"
    )
    once = replace_tables(text, tmp_path)
    assert "stale" not in once
    assert once.count("| B1 H4 d64 N") == 2
    assert "S4096" not in once
    assert once.count("| 3b |") == 1
    assert once.startswith("before\n<!-- bench: results/cpu.json suite=ops N=512,1024 -->\n| Shape")
    assert once.endswith("<!-- /bench -->\nafter\n")
    assert replace_tables(once, tmp_path) == once
    with pytest.raises(ConfigError, match="must hold a case"):
        replace_tables(text.replace("N=512,1024", "N=7"), tmp_path)


def test_targets_are_counted_and_misses_spelled_out(bench_result):
    met, missed = targets_in_words(bench_result.cases)
    assert met == "1 of 2 targets met."
    assert missed.startswith(
        "Missed by chunked at B1 H4 d64 N1024, float32: forward at most 1.05 ×"
    )
    assert missed.endswith("is the target, measured 0.96 ×.")
    assert targets_in_words([]) == ["We set no target for these shapes."]


def test_the_section_shows_everything(bench_result, make_study, tmp_path):
    path = tmp_path / "records" / "cpu.json"
    bench_result.write(path)
    page = build_report(make_study(num_steps=10), benchmarks=[path]).read_text(encoding="utf-8")
    section = page.split('<section id="benchmarks">')[1].split('<section id="provenance">')[0]
    assert "Made-up &lt;processor&gt;" in section
    assert "ops, decode, models (cpu-00c0ffee)</summary>" in section
    assert "0.96× (0.91 to 1.01)" in section
    assert "1 of 2 targets met.</li><li>Missed by" in section


def test_missing_records_are_an_error_and_an_empty_folder_is_none(tmp_path):
    (tmp_path / "host_cpu.json").write_text("{}")  # of 'bench host', in the same folder
    assert read_benchmarks([tmp_path]) == {}
    with pytest.raises(CheckpointError, match="must exist, got none"):
        read_benchmarks([tmp_path / "nothing.json"])
