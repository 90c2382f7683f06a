"""A replacement: the results that it is told, and programs that take another way."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener._tf_private import workers as private
from evener.errors import RunError
from evener.workers.arrays import pack, unpack
from evener.workers.connections import Listener
from evener.workers.faults import weights_are_read
from evener.workers.fingerprints import check_fingerprints, fingerprint
from evener.workers.late import Late, State, arrays_of, packed_as
from evener.workers.recovery import Recovery
from evener.workers.results import CallResults, Results
from evener.workers.variables import Variables
from evener.workers.view import NOTHING, View

SECRET = b"secret"


def view_of(address: str) -> View:
    return View(number=1, members=(0,), addresses={0: address}, done={}, joined=())


def test_results_keep_their_structure() -> None:
    results = {"loss": tf.constant(1.5), "names": [tf.constant([b"a", b"bc"]), None]}
    structure = {"loss": tf.TensorSpec([]), "names": [tf.TensorSpec([2], tf.string), None]}
    found = packed_as(structure, arrays_of(results))
    assert float(found["loss"]) == 1.5
    assert found["names"][0].numpy().tolist() == [b"a", b"bc"]
    assert found["names"][1] is None


def test_another_number_of_results() -> None:
    with pytest.raises(RunError, match="RUN-094"):
        packed_as([tf.TensorSpec([])], arrays_of([tf.constant(1), tf.constant(2)]))


def test_a_state_is_read_as_it_was_written() -> None:
    state = State(done=3, made=4, chief=1, values=(np.ones([2]), None, np.asarray(2)))
    found = State.unpack(state.pack())
    assert (found.done, found.made, found.chief, found.values[1]) == (3, 4, 1, None)
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
    wraps: list[Any] = []
    names = ("_CALLS", "_BATCHES", "_NEXT", "_READS")
    for name in names:
        monkeypatch.setattr(private, name, SimpleNamespace(apply=lambda wrap: None))
    patch = SimpleNamespace(apply_by_name=wraps.append)
    monkeypatch.setattr(private, "_STOPPING", patch)
    given: list[Any] = []
    group: Any = SimpleNamespace(is_late=True, hand_over=lambda *what: given.append(what))
    options: Any = {"take": None, "take_in_loops": None, "batch_type": None}
    private.repeat_calls(group, lambda *_: None, **options)

    def read(self: Any) -> None:
        self.reads += self.restore_best_weights

    stopping = SimpleNamespace(restore_best_weights=True, reads=0)
    begin, end = (wraps[0](read, name) for name in ("on_train_begin", "on_epoch_end"))
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


def test_results_that_are_too_many_are_not_kept() -> None:
    results = Results(limit_bytes=20)
    results.add([np.ones(2, np.float32)], [])
    assert len(results.since(0)) == 1
    results.add([np.ones(4, np.float32)], [])
    assert len(results) == 2
    with pytest.raises(RunError, match="RUN-093"):
        results.since(1)


class Group:
    """Group that a replacement joins.

    Args:
        state: State that is handed over.
        view: View that it joins.
    """

    def __init__(self, state: State, view: View) -> None:
        self._state = state
        self.view = view
        self.taken: State | None = None

    def join(self) -> State:
        return self._state

    def take_over(self, state: State) -> None:
        self.taken = state


def test_a_replacement_gets_all_results_in_order() -> None:
    listener = Listener("127.0.0.1", SECRET)
    calls = [[np.asarray(number)] for number in range(13)]

    def answer(question: Any) -> bytes:
        # The others have gone on since it asked last; the last call needs nobody else.
        known = {0: 7, 7: 9}.get(question["results"], 13)
        return pack([g for c in calls[question["results"] : known] for g in (c, [])]).tobytes()

    listener.answer = answer
    view = view_of(f"127.0.0.1:{listener.port}")
    # Its own listener answers too, and is not asked.
    own = Listener("127.0.0.1", SECRET)
    own.answer = lambda question: pack([]).tobytes()
    addresses = {0: f"127.0.0.1:{own.port}", 1: view.addresses[0]}
    joined = View(number=2, members=(0, 1), addresses=addresses, done={1: 12}, joined=(0,))
    group = Group(State(done=12, made=12, chief=0, values=()), joined)
    late = Late(view, SECRET, {})
    found: list[int] = []
    while True:
        results = late.next_results(group)
        if results is None:
            break
        assert isinstance(results, CallResults)
        found.append(int(results.results[0]))
    assert found == list(range(12))
    assert group.taken is not None
    listener.close()
    own.close()


def test_a_worker_that_is_frozen_is_waited_for_once() -> None:
    """Its system takes connections, but nobody answers."""
    listener = Listener("127.0.0.1", SECRET)
    calls = [pack([[np.asarray(number)], []]).tobytes() for number in range(3)]
    listener.answer = lambda question: calls[question["results"]]
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        addresses = dict(enumerate(f"127.0.0.1:{port}" for port in ports_of(frozen, listener)))
        view = View(number=1, members=(0, 1), addresses=addresses, done={}, joined=())
        late = Late(view, SECRET, {})
        group = Group(State(done=3, made=3, chief=0, values=()), view)
        for number in range(3):
            found = late.next_results(group)
            assert found is not None
            assert int(found.results[0]) == number
        assert late.next_results(group) is None
        frozen.settimeout(1.0)
        with frozen.accept()[0], pytest.raises(TimeoutError):
            frozen.accept()
    listener.close()


def ports_of(frozen: socket.socket, listener: Listener) -> tuple[int, int]:
    return frozen.getsockname()[1], listener.port


def test_nobody_tells_a_replacement() -> None:
    listener = Listener("127.0.0.1", SECRET)
    view = view_of(f"127.0.0.1:{listener.port}")
    listener.close()
    late = Late(view, SECRET, {})
    with pytest.raises(RunError, match="RUN-095"):
        late.next_results(Group(State(done=0, made=0, chief=0, values=()), view))


def test_the_others_have_begun_again() -> None:
    """A replacement has had the results of calls that those who are left have not made."""
    listener = Listener("127.0.0.1", SECRET)
    call = [[np.ones(1)], []]
    listener.answer = lambda question: pack(call * (1 if question["results"] else 5)).tobytes()
    view = view_of(f"127.0.0.1:{listener.port}")
    late, group = Late(view, SECRET, {}), Group(State(done=0, made=0, chief=0, values=()), view)
    for _ in range(5):
        assert late.next_results(group) is not None
    with pytest.raises(RunError, match=r"RUN-095[\s\S]*begun the job again"):
        late.next_results(group)
    assert group.taken is None
    listener.close()


def test_nobody_is_left_whose_state_a_replacement_could_take() -> None:
    """All others have ended while it was behind, and others begin anew with it."""
    member = SimpleNamespace(
        join=lambda: View(number=4, members=(0, 1), addresses={}, done={}, joined=(0, 1))
    )
    with pytest.raises(RunError, match=r"RUN-095[\s\S]*begins again"):
        Recovery.join(SimpleNamespace(_member=member))  # type: ignore[arg-type]


def test_who_has_no_state_gets_one_whatever_view_it_came_in() -> None:
    """Worker 1 missed the last call; worker 2 came in a view that was over at once; 3 is new."""
    sent: dict[int, np.ndarray] = {}
    state = State(done=5, made=9, chief=0, values=(np.arange(3),))
    giver = SimpleNamespace(
        _job=SimpleNamespace(index=0),
        _last_log=[[np.ones(2)]],
        _state=lambda: state,
        _mesh=SimpleNamespace(deliver=lambda label, parcels: sent.update(parcels) or {}),
        _done=5,
    )
    done = {0: 5, 1: 4, 2: NOTHING}
    view = View(number=3, members=(0, 1, 2, 3), addresses={}, done=done, joined=(3,))
    assert Recovery._handed_over(giver, view) is None  # type: ignore[arg-type]
    [[log]] = unpack(sent.pop(1))
    np.testing.assert_array_equal(log, np.ones(2))
    assert sorted(sent) == [2, 3]
    assert all(State.unpack(parcel).made == 9 for parcel in sent.values())


def test_the_worker_with_other_data_is_named() -> None:
    same, other = fingerprint([np.ones(3)]), fingerprint([np.zeros(3)])
    check_fingerprints([same, same], [0, 2], 4)
    with pytest.raises(RunError, match=r"RUN-096.*Worker 2 sees other data.*batch 5"):
        check_fingerprints([same, same, other], [0, 1, 2], 4)
    with pytest.raises(RunError, match="workers 0, 1 see different data"):
        check_fingerprints([same, other], [0, 1], 0)


def test_fingerprints_know_types_and_shapes() -> None:
    ones = np.ones([2, 3], np.float32)
    kinds = [ones, ones.reshape(3, 2), ones.astype(np.float64), np.asarray([b"a"], object)]
    assert len({tuple(fingerprint([array])) for array in kinds}) == len(kinds)


def test_a_listener_that_is_closed_keeps_nobody_waiting() -> None:
    listener = Listener("127.0.0.1", SECRET)
    listener.close()
    with pytest.raises(ConnectionError):
        listener.take(1, 0, time.monotonic() + 20)
