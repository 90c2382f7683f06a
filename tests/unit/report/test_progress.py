"""The progress display, driven by a fake run with its own clock and by `fit`."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest

import evener
import evener.report
from evener.recording.measured import gpu_memory
from evener.report.live import LiveView, TerminalScreen
from evener.report.progress import FollowedFit, TrainingWork
from unit.report.fakes import FakeModel, Run, Terminal


@pytest.fixture(autouse=True)
def no_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evener.recording.measured.gpu_memory", lambda name: None)


@pytest.mark.parametrize(("is_terminal", "least", "most"), [(True, 15, 21), (False, 0, 0)])
def test_metrics_are_read_a_few_times_per_second_or_not_at_all(
    is_terminal: bool, least: int, most: int
) -> None:
    run = Run(is_terminal=is_terminal)
    run.fit([64] * 1000, seconds=0.01)
    assert least <= run.model.num_read <= most


def test_keras_need_not_turn_the_logs_of_every_batch_into_numbers() -> None:
    # It does for callbacks that override one of these, and waits for the devices each time.
    for name in ("on_train_batch_end", "on_batch_end", "on_test_batch_end"):
        assert getattr(type(Run().progress), name) is getattr(keras.callbacks.Callback, name)


@pytest.mark.parametrize("steps_per_execution", [1, 3, 50])
@pytest.mark.parametrize("seconds", [0.001, 0.5])
def test_every_sample_is_counted_once(steps_per_execution: int, seconds: float) -> None:
    run = Run(model=FakeModel(steps_per_execution))
    run.fit([64] * 30 + [16], epochs=3, seconds=seconds, validates=True)
    assert [work.num_samples for work in run.progress.work[:2]] == [4356, 1452]


def test_work_of_another_training_does_not_count() -> None:
    run = Run()
    run.fit([64, 64])
    run.fit([64, 64])
    assert [work.num_samples for work in run.progress.work[:2]] == [96, 32]


def test_devices_without_times_have_samples_but_no_seconds() -> None:
    run = Run(is_counted=False)
    run.fit([64] * 10, epochs=2)
    assert [work.num_samples for work in run.progress.work[:2]] == [960, 320]
    assert [work.busy_seconds for work in run.progress.work] == [None] * 3
    run = Run(is_counted=False)
    run.model.counts = False
    run.fit([64] * 10)
    assert run.progress.work[0].num_samples is None
    assert "samples/s" not in run.text


def test_one_line_for_each_epoch_where_there_is_no_terminal() -> None:
    run = Run(title="Digits")
    run.fit([40] * 10, epochs=2, validates=True)
    assert run.text == (
        "Digits\n"
        "epoch 1/2  loss 0.2500  accuracy 0.5000  400 samples/s  gpu:0 75.0 %  gpu:1 25.0 %\n"
        "epoch 2/2  loss 0.2500  accuracy 0.5000  400 samples/s  gpu:0 75.0 %  gpu:1 25.0 %\n"
    )


def test_one_batch_an_epoch_has_a_speed_from_the_second_epoch_on() -> None:
    run = Run()
    run.fit([40], epochs=2)
    first, second = run.text.splitlines()
    assert "samples/s" not in first and "400 samples/s" in second


def test_on_a_terminal_every_device_has_a_row() -> None:
    run = Run(is_terminal=True, title="Digits")
    run.fit([40] * 10, epochs=2)
    last = run.text.split("Digits")[-1]
    assert "epoch 2/2" in last and "step 10/10" in last and "0 s left" in last
    assert "400 samples/s" in last
    lines = [line.removesuffix("\x1b[K").split() for line in last.splitlines()]
    rows = {words[0]: words for words in lines if words and words[0].startswith("gpu:")}
    assert rows == {
        "gpu:0": "gpu:0 75 % 100 % 1.0 GiB".split(),
        "gpu:1": "gpu:1 25 % 100 % 1.0 GiB".split(),
    }


def test_the_time_that_is_left_is_that_of_the_steps_that_are_left() -> None:
    run = Run(is_terminal=True)
    run.fit([40] * 10, epochs=30)
    shots = [line.strip() for line in run.text.splitlines() if "step 10/10" in line]
    # 29 epochs of 10 steps of 0.1 s; the first step, which traces, tells nothing.
    assert "29 s left" in shots[0] and "epoch 1/30" in shots[0]
    assert "0 s left" in shots[-1]


def test_the_number_of_steps_may_show_only_after_an_epoch() -> None:
    run = Run(is_terminal=True)
    run.fit([40] * 10, epochs=2, steps=None)
    assert "/?" in run.text and "- left" in run.text and "step 10/10" in run.text


def test_shares_are_those_of_the_moment() -> None:
    run = Run()
    assert run.progress.work == ()
    run.fit([40] * 10)
    run.work.shares = {"gpu:0": 0.5, "gpu:1": 0.5}
    assert [work.share for work in run.progress.work] == [0.5, 0.5, None]


def test_an_error_in_training_gives_the_terminal_back() -> None:
    run = Run(is_terminal=True)
    run.progress.set_params({"epochs": 1, "steps": 1})
    with pytest.raises(KeyboardInterrupt), run.progress:
        run.progress.on_train_begin()
        raise KeyboardInterrupt
    # rich hides the cursor when the view begins; it is shown again at once.
    assert "\x1b[?25l\x1b[?25h" in run.text
    assert run.text.count("\x1b[?25l") == 1
    assert run.progress._live is None


def test_evaluating_by_itself_shows_nothing() -> None:
    run = Run()
    run.progress.on_test_begin()
    run.fit([40])
    before = run.text
    run.progress.on_test_begin()
    assert run.text == before


@pytest.mark.parametrize(
    ("is_terminal", "verbose", "expected"),
    [(True, "auto", 0), (True, 1, 0), (True, 2, 2), (False, "auto", "auto")],
)
def test_a_live_display_is_in_place_of_keras_own_bar(
    is_terminal: bool, verbose: object, expected: object
) -> None:
    params = {"epochs": 1, "steps": 1, "verbose": verbose}
    Run(is_terminal=is_terminal).progress.set_params(params)
    assert params["verbose"] == expected


@pytest.mark.parametrize("is_terminal", [True, False])
def test_beside_a_live_view_of_the_run_nothing_is_displayed(is_terminal: bool) -> None:
    terminal = Terminal()
    with LiveView(TerminalScreen(terminal.console, redirects=False), lambda: None):
        run = Run(is_terminal=is_terminal, title="Digits")
        run.fit([40] * 10)
        assert run.text == ""
    assert run.progress.work[0].num_samples == 300


X = np.random.default_rng(0).normal(size=(75, 4)).astype("float32")
Y = X[:, :1]


def make_model(strategy: evener.Strategy | None = None, **compiled: object) -> keras.Model:
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse", **compiled)
    return model


def fit(model: keras.Model) -> evener.report.Progress:
    progress = evener.report.Progress()
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(X, Y, validation_data=(X[:20], Y[:20]), callbacks=[progress], **options)
    return progress


@pytest.mark.parametrize("steps_per_execution", [1, 3, 20])
def test_an_evener_strategy_counts_every_sample_once(
    logical_cpus: tuple[str, ...], steps_per_execution: int
) -> None:
    strategy = evener.Strategy(devices=logical_cpus[:2], shares=[3, 1])
    work = fit(make_model(strategy, steps_per_execution=steps_per_execution)).work
    assert sum(device.num_samples or 0 for device in work) == 150
    assert [device.num_samples for device in work] == pytest.approx([112, 38], abs=2)
    assert all((device.busy_seconds or 0) > 0 for device in work)
    assert [device.share for device in work] == [0.75, 0.25]
    assert {d.device: d.owned.num_bytes for d in work} == strategy.owner_registry.owned_bytes()
    assert sum(d.owned.num_variables for d in work) == len(strategy.owner_registry.variables)


def test_steps_that_were_traced_before_are_counted_by_keras(logical_cpus: tuple[str, ...]) -> None:
    model = make_model(evener.Strategy(devices=logical_cpus[:2], shares=[3, 1]))
    model.fit(X, Y, batch_size=8, verbose=0)
    assert TrainingWork(model).source is None
    work = fit(model).work
    assert [device.num_samples for device in work] == [112, 38]
    assert [device.busy_seconds for device in work] == [None, None]


def test_a_second_training_counts_anew(logical_cpus: tuple[str, ...]) -> None:
    model = make_model(evener.Strategy(devices=logical_cpus[:2], shares=[3, 1]))
    first, second = (fit(model).work for _ in range(2))
    assert [d.num_samples for d in first] == [d.num_samples for d in second]
    for device in second:
        assert device.busy_seconds and device.busy_seconds > 0


@pytest.mark.parametrize("kind", ["strategy", "plain", "eager"])
def test_a_model_on_one_device(kind: str, logical_cpus: tuple[str, ...]) -> None:
    strategy = evener.Strategy(devices=logical_cpus[:1]) if kind == "strategy" else None
    (work,) = fit(make_model(strategy, run_eagerly=kind == "eager")).work
    assert (work.device, work.share, work.num_samples) == ("cpu:0", 1.0, 150)
    # 49 weights, two slots for each, and a handful of counters.
    assert 49 * 4 * 3 <= work.owned.num_bytes <= 49 * 4 * 3 + 100
    assert bool(work.busy_seconds) == (kind == "strategy")
    assert gpu_memory("cpu:0") is None


def test_the_public_names_of_the_report() -> None:
    for name in evener.report.__all__:
        assert getattr(evener.report, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        evener.report.Nothing  # noqa: B018


@pytest.mark.parametrize(("verbose", "num_lines"), [(0, 2), (1, 2), (2, 0)])
def test_a_line_for_each_epoch_that_keras_does_not_write(verbose: int, num_lines: int) -> None:
    lines: list[str] = []
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    progress = FollowedFit(lines.append, [])
    model.fit(x, y, batch_size=4, epochs=2, verbose=verbose, callbacks=[progress])
    assert len(lines) == num_lines
    assert all(line.startswith(f"epoch {k + 1}/2  ") for k, line in enumerate(lines))
    assert (progress.epoch, progress.step, progress.num_steps) == (1, 2, 2)
    assert "loss" in progress.losses
