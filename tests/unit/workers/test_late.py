"""A replacement: the results that it is told, and programs that take another way."""

from __future__ import annotations

import functools
import re
import socket
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener._tf_private import workers as private
from evener.errors import RunError
from evener.workers import faults
from evener.workers.faults import weights_are_read
from evener.workers.late import (
    CallResults,
    Late,
    Point,
    Results,
    State,
    pack_results,
    tensors_as_arrays,
)
from evener.workers.messages import View
from evener.workers.state import Variables, check_fingerprints, digest, fingerprint, summarize
from workers.seats import Seats

SECRET = b"secret"


def test_results_keep_their_structure() -> None:
    results = {"loss": tf.constant(1.5), "names": [tf.constant([b"a", b"bc"]), None]}
    structure = {"loss": tf.TensorSpec([]), "names": [tf.TensorSpec([2], tf.string), None]}
    found = pack_results(structure, tensors_as_arrays(results))
    assert float(found["loss"]) == 1.5
    assert found["names"][0].numpy().tolist() == [b"a", b"bc"]
    assert found["names"][1] is None
    with pytest.raises(RunError, match="RUN-094"):
        pack_results([tf.TensorSpec([])], tensors_as_arrays([tf.constant(1), tf.constant(2)]))


def test_a_state_is_read_as_it_was_written() -> None:
    state = State(point=Point(4, 1), done=3, values=(np.ones([2]), None, np.asarray(2)))
    found = State.unpack(state.pack())
    assert (found.done, found.point, found.values[1]) == (3, Point(4, 1), None)
    np.testing.assert_array_equal(found.values[0], np.ones([2]))


def test_variables_of_another_program() -> None:
    variables = Variables()
    kept = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    for variable in kept:
        variables.add(variable, is_written=True)
    values = [value + 1 for value in variables.values() if value is not None]
    variables.assign(values)
    assert kept[0].numpy().tolist() == [2.0, 3.0]
    with pytest.raises(RunError, match="RUN-094"):
        variables.assign(values[:1])
    with pytest.raises(RunError, match="RUN-094"):
        variables.assign([np.ones([3], np.float32), values[1]])


def test_lists_of_arrays_are_handed_over() -> None:
    class Owner:
        best: Any = None

    mine, theirs = Owner(), Owner()
    theirs.best = [np.ones(2), np.zeros([1, 1])]
    giving, taking = Variables(), Variables()
    for variables, owner in ((giving, theirs), (giving, theirs), (taking, mine)):
        variables.add_list(owner, "best")
    values = giving.values()
    taking.assign(values)
    assert [array.tolist() for array in mine.best] == [[1.0, 1.0], [[0.0]]]
    theirs.best = None
    taking.assign(giving.values())
    assert mine.best is not None
    with pytest.raises(RunError, match="RUN-094"):
        Variables().assign(values)


def test_a_replacement_does_not_read_best_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it cannot know are handed over with the variables."""
    replaced: dict[str, Any] = {}
    patch = SimpleNamespace(
        apply=lambda wrap: None,
        apply_each=lambda replacements, *_, **__: replaced.update(replacements),
    )
    for name in ("_HANDLES", "_TRAINING", "TRACED_FUNCTIONS"):
        monkeypatch.setattr(private, name, patch)
    given: list[Any] = []
    group: Any = SimpleNamespace(
        is_late=True,
        variables=SimpleNamespace(add_list=lambda *what: given.append(what)),
        compare_state=None,
    )
    options: Any = {"take": None, "take_in_loops": None, "batch_type": None}
    private.repeat_calls(group, lambda *_: None, **options)

    def read(self: Any) -> None:
        self.reads += self.restore_best_weights

    stopping = SimpleNamespace(restore_best_weights=True, reads=0)
    names = ("on_train_begin", "on_epoch_end")
    begin, end = (functools.partial(replaced[name], read) for name in names)
    begin(stopping)
    end(stopping)
    assert given == [(stopping, "best_weights")] and not stopping.reads
    assert stopping.restore_best_weights
    group.is_late = False
    end(stopping)
    assert stopping.reads == 1


def test_the_callback_that_reads_weights_is_named() -> None:
    class Reader(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise weights_are_read()

    lists = keras.callbacks.CallbackList([Reader()])
    with pytest.raises(RunError, match=r"RUN-094[\s\S]*Why: Reader reads weights"):
        lists.on_epoch_end(0)
    assert "The program reads weights" in weights_are_read().why


def test_results_take_the_bytes_that_are_counted() -> None:
    """A replacement gets them as they were; those that are too many are not kept."""
    results = Results()
    for number in range(3):
        results.add([np.asarray(number), np.asarray([b"a", b"bc"], object)], [np.ones([2, 3])])
    found = CallResults.unpack_all(results.since(1))
    assert [int(call.results[0]) for call in found] == [1, 2]
    assert found[0].results[1].tolist() == [b"a", b"bc"]
    np.testing.assert_array_equal(found[1].variables[0], np.ones([2, 3]))
    assert len(results.since(0)) < results._num_bytes < 2 * len(results.since(0))
    results = Results(limit_bytes=300)
    results.add([np.ones(2, np.float32)], [])
    assert len(CallResults.unpack_all(results.since(0))) == 1
    results.add([np.ones(48, np.float32)], [])
    assert len(results) == 2
    with pytest.raises(RunError, match="RUN-093"):
        results.since(1)


def test_a_worker_that_is_frozen_is_waited_for_once() -> None:
    """Its system takes connections, but nobody answers."""
    results = Results()
    for number in range(3):
        results.add([np.asarray(number)], [])
    seats = Seats(2)
    other, own = seats.networks
    other.answer = lambda question: results.since(question["results"])
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        ports = frozen.getsockname()[1], other.port
        addresses = [f"127.0.0.1:{port}" for port in ports]
        for number in range(4):
            assert len(own.ask(addresses, number)) == 3 - number
        frozen.settimeout(1.0)
        with frozen.accept()[0], pytest.raises(TimeoutError):
            frozen.accept()
    other.close()
    with pytest.raises(OSError, match="127"):
        own.ask(addresses[1:], 0)
    own.close()


def state_at(calls: int, exchanges: int) -> State:
    return State(point=Point(calls, exchanges), done=calls, values=())


def joining(state: State) -> Any:
    """Return a group that a replacement joins."""
    return SimpleNamespace(
        view=View(number=1, members=(0,), addresses={0: "a"}, done={}, joined=()),
        point=Point(0, 0),
        ask=lambda view, number: [CallResults([np.asarray(k)], []) for k in range(number, 6)],
        join=lambda: state,
    )


def late_of(group: Any, exchanged: dict[str, Any] | None = None, *, is_alone: bool = False) -> Late:
    view = None if is_alone else group.view
    member: Any = SimpleNamespace(look=lambda: (view, exchanged or {}), pause=None)
    return Late(group.view, member, {})


def test_a_state_is_taken_where_it_holds() -> None:
    """The others stand behind two exchanges, and so between what the program assigns there."""
    group = joining(state_at(6, 2))
    late = late_of(group, {"save 0": [1], "save 1": [2]})
    for number in range(6):
        found = late.next_results(group)
        assert found is not None
        assert int(found.results[0]) == number
        group.point = Point(number + 1, 0)
        assert not late.is_with_others(group.point)
        late.state = None
    late.state = state_at(6, 2)
    assert late.exchange("save 0") == [1]
    assert not late.is_with_others(Point(6, 1))
    assert late.is_with_others(Point(6, 2))


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda late, group: late.is_with_others(Point(7, 1)), "RUN-095"),
        (lambda late, group: late.is_with_others(Point(6, 3)), "RUN-095"),
        (lambda late, group: late.next_results(group), "RUN-094"),
        (lambda late, group: late.exchange("save 9"), "RUN-094"),
        (lambda late, group: late.wait_for_end(), "RUN-094"),
    ],
)
def test_a_program_that_takes_another_way(act: Any, code: str) -> None:
    """It goes past the point of the others, or makes other calls, exchanges or an end there."""
    group = joining(state_at(6, 2))
    late = late_of(group)
    late.state = state_at(6, 2)
    with pytest.raises(RunError, match=code):
        act(late, group)


@pytest.mark.parametrize("act", [lambda late: late.exchange("save 9"), Late.wait_for_end])
def test_nobody_is_left_to_wait_for(act: Any) -> None:
    with pytest.raises(RunError, match=r"RUN-095[\s\S]*begins again"):
        act(late_of(joining(state_at(0, 0)), is_alone=True))


def summary(*values: float) -> dict[str, Any]:
    return summarize({"kernel (0)": np.asarray(values, np.float32), "gone (1)": None})


def test_states_that_differ_name_their_variables() -> None:
    told = {0: summary(1.0, 2.0), 1: summary(1.0, 2.0), 2: summary(1.0, 2.1)}
    error = faults.other_states(told)
    assert error is not None
    assert re.search(r"RUN-079.*kernel \(0\)[\s\S]*worker 2 differ", str(error))
    # Differences in the last bit do not count, nor variables that are gone on one worker alone.
    nearly = summarize({"kernel (0)": np.asarray([1.0, 2.0000002], np.float32)})
    assert digest({"k": np.ones(2)}) != digest({"k": np.asarray([1.0, np.nextafter(1.0, 2.0)])})
    assert faults.other_states({0: summary(1.0, 2.0), 1: nearly, 2: summarize({})}) is None
    texts = [summarize({"t (0)": np.asarray([text], object)}) for text in (b"a", b"b")]
    assert faults.other_states(dict(enumerate(texts))) is not None


def test_the_worker_with_other_data_is_named() -> None:
    same, other = fingerprint([np.ones(3)]), fingerprint([np.zeros(3)])
    check_fingerprints([same, same], [0, 2], 4)
    with pytest.raises(RunError, match=r"RUN-096.*Worker 2 sees other data.*batch 5"):
        check_fingerprints([same, same, other], [0, 1, 2], 4)
    with pytest.raises(RunError, match="workers 0, 1 see different data"):
        check_fingerprints([same, other], [0, 1], 0)
    # Fingerprints know types and shapes.
    ones = np.ones([2, 3], np.float32)
    kinds = [ones, ones.reshape(3, 2), ones.astype(np.float64), np.asarray([b"a"], object)]
    assert len({tuple(fingerprint([array])) for array in kinds}) == len(kinds)
