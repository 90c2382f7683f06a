"""The examples of custom loops and layouts, run as a person runs them."""

from __future__ import annotations

import re

import pytest

from .running import run


@pytest.mark.long
def test_a_custom_loop_learns_on_all_devices() -> None:
    code, out, err = run("custom_loop.py", "--devices", "cpu:2")
    assert code == 0, out + err
    assert len(re.findall(r"^epoch \d/6  loss ", out, re.MULTILINE)) == 6
    assert "cpu:0, cpu:1 computed" in out
    # No word but the log's: nothing is traced again, nothing is warned of.
    assert err == ""


@pytest.mark.long
def test_two_devices_have_shares_and_one_devices_weights() -> None:
    code, out, err = run("two_gpus_unlike.py", "--devices", "cpu:2", "--epochs", "3")
    assert code == 0, out + err
    shares = [float(share) for share in re.findall(r"share (\S+)%", out)]
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert re.search(r"Largest difference to one device \d\.\de-\d\d, wanted 1e-04", out)


@pytest.mark.long
def test_independent_models_come_out_one_per_device() -> None:
    code, out, err = run("independent_models.py", "--devices", "cpu:2", "--epochs", "1")
    assert code == 0, out + err
    assert re.findall(r"^(cpu:\d)  learning rate (\S+)  test accuracy", out, re.MULTILINE) == [
        ("cpu:0", "0.003"),
        ("cpu:1", "0.001"),
    ]


@pytest.mark.long
def test_central_storage_keeps_everything_on_the_host() -> None:
    code, out, err = run("central_storage.py", "--devices", "cpu:2", "--epochs", "1")
    assert code == 0, out + err
    assert re.search(r"^  cpu:0  [\d.]+ KiB$", out, re.MULTILINE)
    assert re.search(r"^  cpu:1  0 B$", out, re.MULTILINE)


@pytest.mark.long
def test_a_step_with_a_contrastive_loss_equals_one_device() -> None:
    code, out, err = run("distribute_step.py", "--devices", "cpu:2", "--epochs", "1")
    assert code == 0, out + err
    told = re.search(r"Verified against one device: results differ by at most (\S+),", err)
    assert told is not None
    assert float(told[1]) < 1e-5
    assert "epoch 1/1  loss" in out
    assert len(err.splitlines()) == 1
