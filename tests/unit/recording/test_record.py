from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import EvenerWarning, RunError
from evener.recording import reading as names
from evener.recording.reading import RunRecord, read_records, summarise, typical_step
from evener.recording.record import RecordFolder, watching

pytestmark = pytest.mark.usefixtures("logical_cpus")

X, Y = np.ones((64, 8), "float32"), np.zeros((64, 1), "float32")


def model_under(strategy: evener.Strategy) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, name="first"),
                keras.layers.Dense(1, name="second"),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
    return model


def recorded(folder: Path, strategy: evener.Strategy, *, epochs: int = 3) -> RunRecord:
    model = model_under(strategy)
    with evener.record(folder, strategy):
        model.fit(X, Y, batch_size=16, epochs=epochs, verbose=0)
    (record,) = read_records(folder)
    return record


def test_a_fit_is_recorded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--password=1a2b", "WANDB_API_KEY=3c4d"])
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    record = recorded(tmp_path, strategy)
    summary = summarise(record)
    assert record.missing == ()
    assert (summary.state, summary.num_samples) == ("ended", 192)
    assert dict(summary.shares) == {"cpu:0": 0.75, "cpu:1": 0.25}
    assert [line["epoch"] for line in record.losses if "batch" not in line] == [0, 1, 2]
    assert set(record.losses[-1]["values"]) == {"loss", "mae"}
    assert set(typical_step(record)) == {"cpu:0", "cpu:1"}
    assert {"begin", "memory", "end"} <= {event["event"] for event in record.events}
    command = json.loads((tmp_path / "record.json").read_text())["command"]
    assert command == ["train.py", "--password=[hidden]", "WANDB_API_KEY=[hidden]"]
    # The update waits for the parts of all devices.
    (spans,) = record.traces.values()
    parts = {k for k, span in enumerate(spans) if span["kind"] == "forward + backward"}
    assert len(parts) == 2
    updates = [span for span in spans if span["kind"] == "update" and parts <= set(span["after"])]
    assert {span["device"] for span in updates} == {"cpu:0", "cpu:1"}


def test_a_pipeline_has_stages_and_micro_batches_in_their_order(tmp_path: Path) -> None:
    plan = evener.Plan.pipeline([("cpu:0", ["first"]), ("cpu:1", ["second"])], num_micro_batches=2)
    record = recorded(tmp_path, evener.Strategy(plan))
    (spans,) = record.traces.values()
    of_stages = [span for span in spans if "stage" in span]
    assert {(s["device"], s["stage"], s["micro_batch"]) for s in of_stages} == {
        ("cpu:0", 0, 0), ("cpu:0", 0, 1), ("cpu:1", 1, 0), ("cpu:1", 1, 1),
    }  # fmt: skip
    for step in record.steps:
        for number, span in enumerate(spans):
            if "stage" not in span:
                continue
            # Ends may be read late. A task that is computed once does not wait for the reading of
            # its begin, so a task that needs its result may begin before that reading.
            for before in span["after"]:
                if "stage" in spans[before]:
                    assert step["begin"][number] >= step["begin"][before]
    between = {
        (spans[before]["stage"], span["stage"])
        for span in of_stages
        for before in span["after"]
        if "stage" in spans[before]
    }
    assert {(0, 1), (1, 0)} <= between


def test_one_device_is_recorded_too(tmp_path: Path) -> None:
    record = recorded(tmp_path, evener.Strategy(devices=["cpu:0"]))
    summary = summarise(record)
    assert summary.num_samples == 192
    assert list(summary.inside) == ["cpu:0"]
    assert summary.inside["cpu:0"].compute > 0


@pytest.mark.long
def test_a_slowed_device_is_the_one_that_the_others_wait_for(tmp_path: Path) -> None:
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares="even")

    def work(replica: int, samples: tf.Tensor) -> tf.Tensor:
        # A loop, which TensorFlow does not leave out.
        rounds = tf.constant(0) if replica == 0 else 100 * samples
        matrix = tf.eye(100)
        body = lambda k, m: (k + 1, tf.linalg.matmul(m, matrix))  # noqa: E731
        return tf.while_loop(lambda k, _: k < rounds, body, (0, matrix))[1]

    strategy.share_controller.before_part = work
    summary = summarise(recorded(tmp_path, strategy, epochs=12))
    first, second = summary.inside["cpu:0"], summary.inside["cpu:1"]
    assert first.wait.get("cpu:1", 0.0) + first.idle > 0.5 * first.length
    assert first.wait["cpu:1"] > 0.3 * first.length
    assert second.compute > 0.5 * second.length
    assert sum(second.wait.values()) < 0.3 * second.length


@pytest.mark.parametrize(
    ("error", "event", "text"),
    [
        (ZeroDivisionError("in the loop"), "failed", "ZeroDivisionError: in the loop"),
        (KeyboardInterrupt(), "end", "stopped by Ctrl-C"),
    ],
)
def test_an_error_of_the_run_is_its_end(
    error: BaseException, event: str, text: str, tmp_path: Path
) -> None:
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"])
    with pytest.raises(type(error)), evener.record(tmp_path, strategy) as recording:
        recording.log({"loss": float("nan"), "words": "no number"}, step=3)
        raise error
    (record,) = read_records(tmp_path)
    assert record.end is not None
    assert (record.end["event"], record.end["text"]) == (event, text)
    (line,) = record.losses
    assert (line["step"], line["values"]) == (3, {"loss": "nan"})


def test_a_record_is_read_while_it_is_written(tmp_path: Path) -> None:
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"])
    model = model_under(strategy)
    with evener.record(tmp_path, strategy):
        model.fit(X, Y, batch_size=16, verbose=0)
        (record,) = read_records(tmp_path)
        assert record.end is None
        assert record.losses
        assert summarise(record).state == "no end"


def test_steps_before_the_record_are_an_error(tmp_path: Path) -> None:
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"])
    model_under(strategy).fit(X, Y, batch_size=16, verbose=0)
    with pytest.raises(RunError, match="RUN-102"):
        evener.record(tmp_path / "run", strategy)
    assert not (tmp_path / "run").exists()


def test_the_weights_are_those_of_a_run_without_a_record(tmp_path: Path) -> None:
    weights = []
    for is_recorded in (False, True):
        keras.utils.set_random_seed(3)
        strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
        model = model_under(strategy)
        if is_recorded:
            with evener.record(tmp_path, strategy):
                model.fit(X, Y, batch_size=16, epochs=2, verbose=0, shuffle=False)
        else:
            model.fit(X, Y, batch_size=16, epochs=2, verbose=0, shuffle=False)
        weights.append([np.asarray(weight) for weight in model.get_weights()])
    for first, second in zip(*weights, strict=True):
        np.testing.assert_array_equal(first, second)


def test_messages_of_the_log_and_warnings_are_events_and_shown_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Mapping[str, object]] = []
    logged: list[str] = []
    shown: list[str] = []
    logger, handler = logging.getLogger("evener"), logging.Handler()
    level = logger.level
    monkeypatch.setattr(handler, "emit", lambda record: logged.append(record.getMessage()))
    monkeypatch.setattr(warnings, "showwarning", lambda text, *_: shown.append(str(text)))
    logger.addHandler(handler)
    try:
        with watching(events.append):
            logger.info("a checkpoint")
            logger.debug("unimportant")
            logger.warning("worker 1 is lost")
            warnings.showwarning(EvenerWarning("[X-001] what"), EvenerWarning, "f", 1)
            warnings.showwarning(UserWarning("of others"), UserWarning, "f", 1)
    finally:
        logger.removeHandler(handler)
    logger.info("after the record")
    assert logger.level == level
    assert logged == ["worker 1 is lost"]
    assert shown == ["[X-001] what", "of others"]
    texts = [event["text"] for event in events]
    assert texts == ["a checkpoint", "worker 1 is lost", "[X-001] what"]


def test_a_line_is_there_when_it_was_added(tmp_path: Path) -> None:
    folder = RecordFolder(tmp_path / "a" / "run")
    folder.add(names.EVENTS, {"text": "é"})
    assert json.loads((folder.path / names.EVENTS).read_text()) == {"text": "é"}
    folder.close()
    folder.close()


def test_a_full_file_says_so_and_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(names.MOST_BYTES, names.STEPS, 100)
    folder = RecordFolder(tmp_path)
    for number in range(50):
        folder.add(names.STEPS, {"step": number})
    lines = (tmp_path / names.STEPS).read_text().splitlines()
    assert json.loads(lines[-1]) == names.FULL
    assert len(lines) < 12
    folder.close()


def test_a_record_is_never_overwritten(tmp_path: Path) -> None:
    for name in ("written", "begun"):
        folder = RecordFolder(tmp_path / name)
        if name == "written":
            folder.write_record({"version": 1})
        folder.close()
        with pytest.raises(RunError, match="RUN-100"):
            RecordFolder(tmp_path / name)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match="RUN-101"):
            RecordFolder(path)


def test_a_full_disk_ends_the_record_and_not_the_run(tmp_path: Path) -> None:
    class FullDisk:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    folder = RecordFolder(tmp_path)
    folder._files[names.EVENTS].close()
    folder._files[names.EVENTS] = FullDisk()  # type: ignore[assignment]
    folder.add(names.EVENTS, {})
    folder.add(names.METRICS, {})
    assert folder.problem == "No space left on device"
    folder.close()
