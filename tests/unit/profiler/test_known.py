"""Layers are not measured a second time. Calls are counted; no clock is read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from evener.devices import use_devices
from evener.errors import EvenerWarning
from evener.graph.trace import TracedStep
from evener.plan.profile_files import (
    DeviceIdentity,
    KnownTimes,
    MeasurementCache,
    ReusedLayers,
    from_fields,
    to_fields,
)
from evener.profile import Curve, LayerTimes
from evener.profiler import measure
from evener.profiler import profile as identity
from evener.profiler.measure import measure_step
from evener.profiler.profile import KnownDevices, identity_of, num_threads, profile_step
from unit.profiler.models import dense, sequence, traced
from unit.profiler.test_measure import Counting

IDENTITY = DeviceIdentity(hardware="processor", machine="here", tensorflow="2.21.0")


def step(width: int = 6) -> TracedStep:
    blocks = [dense(width, f"block_{k}", "tanh") for k in range(3)]
    return traced(sequence((6,), *blocks, dense(1, "head")), (1,))


def num_runs(
    traced: TracedStep,
    folder: Path,
    *,
    sizes: tuple[int, ...] = (2,),
    device: DeviceIdentity = IDENTITY,
    refresh: bool = False,
) -> tuple[int, int]:
    """Return how many calls were timed, and how many layers were known."""
    clock, before = Counting(), KnownTimes(MeasurementCache(folder, refresh=refresh), device)
    measure_step(traced, "cpu:0", sizes, clock=clock, whole_at=sizes[-1], before=before)
    return len(clock.runs), before.reused.num_reused


def test_a_second_run_measures_nothing(tmp_path: Path) -> None:
    first, known = num_runs(step(), tmp_path)
    assert first > 0
    assert known == 0
    # Traced anew, as in another process.
    assert num_runs(step(), tmp_path) == (0, 4)
    assert num_runs(step(), tmp_path, refresh=True) == (first, 0)


@pytest.mark.long
def test_only_other_layers_are_measured(tmp_path: Path) -> None:
    first, _ = num_runs(step(6), tmp_path)
    again, known = num_runs(step(7), tmp_path)
    assert 0 < again <= first
    assert known == 0
    assert num_runs(step(6), tmp_path, sizes=(2, 8))[1] == 0
    other = DeviceIdentity(hardware="processor", machine="here", tensorflow="2.22.0")
    assert num_runs(step(6), tmp_path, device=other) == (first, 0)
    # A broken file is measured again.
    (tmp_path / IDENTITY.file_name).write_text("{", encoding="utf-8")
    with pytest.warns(EvenerWarning, match="PROF-013"):
        assert num_runs(step(), tmp_path) == (first, 0)
    assert num_runs(step(), tmp_path) == (0, 4)


@pytest.mark.long
def test_profiles_of_known_layers_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[Any] = []

    class Counted(Counting):
        def __init__(self, device: str) -> None:
            super().__init__()
            counts.append(device)

    monkeypatch.setattr(measure, "Clock", Counted)
    devices = use_devices("cpu:2")
    found = []
    for _ in range(2):
        known = KnownDevices(MeasurementCache(tmp_path))
        profile, _ = profile_step(step(), devices, 4, known=known)
        found.append((profile.times, profile.step_overhead_seconds))
        (taken,) = known.reused
        assert taken.num_layers == 4
    assert found[0] == found[1]
    assert counts == ["/device:CPU:0"]
    assert taken.num_reused == 4


def test_the_identity_of_a_processor() -> None:
    found = identity_of("cpu:0", {})
    assert found.hardware
    assert found.machine
    assert found.tensorflow.count(".") == 2
    assert (found.driver, found.settings) == ("", "")
    assert found.num_threads == tf.config.threading.get_intra_op_parallelism_threads()
    with_flags = identity_of("cpu:0", {"XLA_FLAGS": "--a", "TF_ENABLE_ONEDNN_OPTS": "0"})
    assert with_flags.settings == "TF_ENABLE_ONEDNN_OPTS=0, XLA_FLAGS=--a"
    assert with_flags.file_name != found.file_name


def test_a_processor_of_which_a_device_has_a_part_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cores = {0, 1, 2, 3}
    monkeypatch.setattr(identity, "affinity", lambda: set(cores))
    devices = identity.KnownDevices(MeasurementCache(folder=tmp_path))
    whole = devices("cpu:0")._identity
    cores -= {2, 3}
    part = devices("cpu:0")._identity
    assert part.settings.split(", ")[-1] == "cores=2"
    assert part.file_name != whole.file_name


def test_the_identity_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def read_machine(self) -> Any:
            return SimpleNamespace(driver_version="550.1")

    monkeypatch.setattr(identity, "Nvml", Driver)
    monkeypatch.setattr(identity, "hardware_of", {"gpu:1": "NVIDIA A100"}.__getitem__)
    found = identity_of("gpu:1", {})
    # Threads of the processor do not count.
    assert (found.hardware, found.driver, found.num_threads) == ("NVIDIA A100", "550.1", 0)


def test_threads_are_those_of_the_program_the_environment_or_all_cores() -> None:
    environ = {"TF_NUM_INTRAOP_THREADS": "3"}
    assert num_threads(2, 8, environ) == 2
    assert num_threads(0, 8, environ) == 3
    assert num_threads(0, 8, {}) == 8
    assert num_threads(0, 8, {"TF_NUM_INTRAOP_THREADS": "many"}) == 8


GPU = DeviceIdentity(hardware="NVIDIA A100", machine="here")
TIMES = LayerTimes(forward=Curve(((1, 0.25),)), backward=Curve(((1, 0.5),)))
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def never() -> LayerTimes:
    raise AssertionError("measured again")


def known(folder: Path, identity: DeviceIdentity = GPU) -> KnownTimes:
    return KnownTimes(MeasurementCache(folder, now=lambda: NOON), identity)


def test_layers_are_counted_with_those_like_them(tmp_path: Path) -> None:
    first = known(tmp_path)
    assert first.layer("dense", lambda: TIMES, num_layers=3) == TIMES
    assert first.reused == ReusedLayers(hardware="NVIDIA A100", num_layers=3, num_reused=0)
    second = known(tmp_path)
    assert second.layer("dense", never, num_layers=3) == TIMES
    assert second.layer("head", lambda: TIMES) == TIMES
    assert second.reused == ReusedLayers(
        hardware="NVIDIA A100", num_layers=4, num_reused=3, since=NOON
    )
    assert str(second.reused).startswith(
        "NVIDIA A100: 3 of 4 layers from earlier runs, since 2026-"
    )


def test_times_of_another_machine_are_not_taken(tmp_path: Path) -> None:
    known(tmp_path).layer("dense", lambda: TIMES)
    other = known(tmp_path, DeviceIdentity(hardware="NVIDIA A100", machine="there"))
    with pytest.raises(AssertionError, match="measured again"):
        other.layer("dense", never)


def test_what_cannot_be_measured_is_not_kept_and_without_a_cache_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        known(tmp_path).layer("dense", never)
    assert known(tmp_path).layer("dense", lambda: TIMES) == TIMES
    times, numbers = KnownTimes(), iter([1.0, 2.0])
    assert [times.other("rest", numbers.__next__, float) for _ in "ab"] == [1.0, 2.0]


@pytest.mark.parametrize("since", [None, NOON])
def test_a_count_goes_to_another_process(since: datetime | None) -> None:
    taken = ReusedLayers(hardware="cpu", num_layers=4, num_reused=2, since=since)
    assert from_fields(json.loads(json.dumps(to_fields(taken))), ReusedLayers) == taken
