"""The list of GPUs that the kernels were tested on: what it holds, and what it refuses."""

import json
import re
from dataclasses import replace

import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.ops.inputs import verified_devices
from diffattn.ops.inputs.verified_devices import VerifiedDevice

H100 = VerifiedDevice(
    capability=(9, 0), device="NVIDIA H100 80GB HBM3", torch="2.13.0", triton="3.7.1",
    ptxas="12.8.93", commit="0123456789abcdef", date="2026-12-01", passed=400, failed=0, skipped=3,
)  # fmt: skip


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "list.json"
    newer = replace(H100, date="2026-12-02", failed=1)
    verified_devices.write([newer, H100], path)
    assert verified_devices.read(path) == (H100, newer)
    assert len(path.read_text().splitlines()) == 4  # a run has a line of its own
    verified_devices.write([], path)
    assert verified_devices.read(path) == ()


def test_the_list_of_the_package_can_be_read():
    for device in verified_devices.read():
        assert device.capability >= (8, 0)


def test_the_last_run_of_a_family_and_a_compiler_counts():
    a100 = replace(H100, capability=(8, 0))
    broken = replace(H100, failed=2)
    older = replace(H100, triton="3.6.0")
    runs = [H100, broken, a100, older]
    assert verified_devices.latest((9, 0), "3.7.0", runs) is broken
    assert verified_devices.latest((8, 0), "3.7.1+git0", runs) is a100
    assert verified_devices.latest((9, 0), "3.6.1", runs) is older
    assert verified_devices.latest((8, 0), "3.6.0", runs) is None
    assert verified_devices.latest((8, 6), "3.7.1", runs) is None
    assert verified_devices.latest((9, 0), None, runs) is None


@pytest.mark.parametrize(
    ("counts", "verified"),
    [((1, 0, 9), True), ((400, 1, 0), False), ((0, 0, 400), False)],
)
def test_verified_means_that_tests_ran_and_none_failed(counts, verified):
    passed, failed, skipped = counts
    assert replace(H100, passed=passed, failed=failed, skipped=skipped).verified is verified


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capability": (9,)}, "capability must be (major, minor), got an object of type tuple."),
        ({"capability": "90"}, "capability must be (major, minor), got '90'."),
        ({"capability": (9, -1)}, "capability must be (major, minor)"),
        ({"device": " "}, "device must be text, got ' '."),
        ({"triton": 3.7}, "triton must be text, got 3.7."),
        ({"triton": "main"}, "triton must be a version, got 'main'."),
        ({"ptxas": ""}, "ptxas must be text, got ''."),
        ({"commit": "main"}, "commit must be 7 to 40 hexadecimal digits, got 'main'."),
        ({"date": "1 December"}, "date must be YYYY-MM-DD, got '1 December'."),
        ({"date": "20261201"}, "date must be YYYY-MM-DD, got '20261201'."),
        ({"passed": -1}, "passed must be a number of tests, got -1."),
        ({"failed": True}, "failed must be a number of tests, got True."),
    ],
)
def test_a_wrong_field_is_refused(changes, message):
    with pytest.raises(ConfigError, match="^VerifiedDevice: " + re.escape(message)):
        replace(H100, **changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold a list of tested GPUs, got Expecting value"),
        ("{}", "must hold a list of tested GPUs, got dict."),
        ("[3]", "an entry must have capability, device, .*, got int."),
        ('[{"device": "T4"}]', "an entry must have capability, device, .*, got device."),
    ],
)
def test_a_damaged_list_is_refused_by_name(text, message, tmp_path):
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=f"list.json: {message}"):
        verified_devices.read(path)


def test_a_missing_list_and_a_wrong_entry_are_refused_by_name(tmp_path):
    path = tmp_path / "list.json"
    with pytest.raises(CheckpointError, match=r"list.json: must hold a list of tested GPUs, got"):
        verified_devices.read(path)
    verified_devices.write([H100], path)
    entries = json.loads(path.read_text())
    path.write_text(json.dumps([entries[0] | {"passed": "all"}]))
    with pytest.raises(CheckpointError, match=r"list.json: VerifiedDevice: passed must be"):
        verified_devices.read(path)
