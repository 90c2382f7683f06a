"""All patches of TensorFlow and Keras are in one list, and all of them can be undone."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import evener
from evener._tf_private import patches
from evener._tf_private.patches import Patch

SOURCE = Path(evener.__file__).parent
# All modules that declare patches.
DECLARING = tuple(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if re.search(r" = _?[Pp]atch\(", path.read_text(encoding="utf-8"))
)
# By name: the attributes, without their module, or the number of attributes.
PATCHES = {
    "activations of a watched program": 10,
    "batches of iterators": (
        "OwnedIterator.__next__ OwnedIterator.get_next OwnedIterator.get_next_as_optional "
        "DistributedIteratorBase.__next__ DistributedIteratorBase.get_next "
        "DistributedIteratorBase.get_next_as_optional"
    ),
    "batches that functions take": "OwnedIterator._next_internal",
    "callbacks of a watched program": 5,
    "callbacks of runs that are followed": "CallbackList.__init__",
    "calls around the steps of a watched program": 19,
    "cross entropies of a watched program": 3,
    "datasets that a watched program makes": 30,
    "devices of gradients": 11,
    "devices of strategies": 5,
    "devices that scripts ask for": "device",
    "devices with names of hardware": "device compat.v1.device compat.v2.device",
    "downloads of workers": 10,
    "calls that eager code makes and a trace has to answer": (
        "__internal__.SymbolicTensor.__len__ constant print_v2 get_seed random_standard_normal "
        "random_uniform random_uniform_int truncated_normal"
    ),
    "eager operations of a watched program": "TFE_Py_FastPathExecute",
    "epochs of fit": 5,
    "evener.pin in scripts": "pin",
    "evener.use_devices in scripts": "use_devices",
    "files that workers write and read": 19,
    "filters of tracebacks": "_process_traceback_frames _process_traceback_frames",
    "fit with checkpoints": "TensorFlowTrainer.fit.<fn>.cell_contents",
    "functions that name GPUs": 69,
    "fused BatchNormalization": "compat.v1.nn.fused_batch_norm",
    "generators of a strategy": "Generator._preprocess_key",
    "gradients and updates of a watched program": (
        "GradientTape.gradient optimizers.Optimizer.apply"
    ),
    "gradients of audited programs": "GradientTape.gradient",
    "iterations over datasets in a watched program": (
        "DatasetV2.__iter__ DistributedDataset.__iter__"
    ),
    "jit_compile of benchmarks": "Model.compile",
    "layers in a pinned block": "Operation.__init__ Layer.__init__",
    "layers of a watched program": "layers.Layer.__init__",
    "layers that a watched program gives its inputs": 7,
    "layers that are made in calls, and their weights": "Layer.__init__ Layer.add_weight",
    "layers that behave otherwise in training": 7,
    "lines of failing operations": "InterpolateRuntimeError.interpolate",
    "loops over datasets": (
        "for_loop_registry._registry[DatasetV2] for_loop_registry._registry[OwnedIterator]"
    ),
    "losses of TensorFlow in a watched program": 3,
    "losses of a watched program": "losses.Loss.__call__",
    "metrics of a watched program": 6,
    "models of a watched program": "Model.__init__",
    "models of scripts": "Model.__init__ TensorFlowTrainer.__init__",
    "models, weights, optimizers, slots and reductions of Keras 2": 5,
    "modules that name GPUs": 8,
    "new variables": "Variable.__init__ Variable._initialize Variable._deferred_initialize",
    "optimizers of a watched program": "optimizers.Optimizer.__init__",
    "pinned layers": 5,
    "pins of a watched program": "device",
    "reads of tensors on the host": "_EagerTensorBase._numpy",
    "reads of unknown dimensions": (
        "TensorShape.__getitem__ TensorShape.__iter__ TensorShape.as_list TensorShape.num_elements"
    ),
    "evaluations of loops that are resumed": "Model.evaluate Model.predict",
    "handles of variables": "BaseResourceVariable._handle",
    "runs of traced functions": "AtomicFunction.call_flat",
    "settings of a watched program": 15,
    "shuffles of arrays": "random.shuffle",
    "slots and updates of variables": 4,
    "start of devices in a watched program": (
        "Context.ensure_initialized Context._initialize_physical_devices"
    ),
    "statistics of BatchNormalization": "layers.BatchNormalization.call",
    "strategies of optimizers": "TFOptimizer._distribution_strategy",
    "strategies that are left alone": 10,
    "strategies that scripts make": 15,
    "summaries and profiles of workers": "create_summary_file_writer ProfilerSession",
    "tapes of a watched program": "GradientTape.__enter__ GradientTape.__exit__",
    "tapes of scripts": "GradientTape.__enter__ GradientTape.gradient",
    "tf.distribute.get_strategy in scripts": (
        "distribute.get_strategy compat.v1.distribute.get_strategy "
        "compat.v2.distribute.get_strategy"
    ),
    "the old list of devices": "list_local_devices",
    "traced functions that a program makes and calls": (
        "Function.__init__ Function.__call__ Function._initialize"
    ),
    "trainers under a strategy": 4,
    "unseeded generators of NumPy": "default_rng",
    "updates of scripts and audited programs": "optimizers.Optimizer.apply",
    "strategies of a watched program": 5,
    "weights and batches of workers": 4,
    "settings of devices and threads": 7,
    "variables of custom gradients": "frozenset sorted",
}
# Attributes of TensorFlow and Keras that are set otherwise.
_SET = re.compile(
    r"^ *(setattr\((keras|tf|kind|module)\b|(keras|tf|kind)(\.\w+)+ = )", re.MULTILINE
)


class Kind:
    """A class in the place of one of TensorFlow."""

    def double(self, number: int) -> int:
        return 2 * number


class Heir(Kind):
    """A class that inherits what is replaced."""


here = SimpleNamespace(items={"one": 1, Kind: 2})


def plus(number: int) -> Callable[[Any], Any]:
    """Return a wrap that adds a number to results."""

    def wrap(original: Callable[..., int]) -> Callable[..., int]:
        return functools.wraps(original)(lambda *args: original(*args) + number)

    return wrap


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Patch]]:
    """Declare patches that are in the list until the end of the test."""
    monkeypatch.setattr(patches, "_patches", {})
    declared: list[Patch] = []

    def declare(name: str, *targets: str, **choices: Any) -> Patch:
        targets = tuple(f"{__name__}:{target}" for target in targets)
        declared.append(Patch(name, *targets, why="why", if_it_changes="what", **choices))
        return declared[-1]

    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(**globals()))
    yield declare
    for patch in declared:
        patch.undo()


def test_the_list_of_all_patches() -> None:
    for name in DECLARING:
        importlib.import_module(name)
    found = {name: patch.targets for name, patch in patches.registered().items()}
    assert found.keys() == PATCHES.keys()
    for name, listed in PATCHES.items():
        paths = " ".join(target.partition(":")[2] for target in found[name])
        assert listed in (paths, len(found[name])), name
    for patch in patches.registered().values():
        assert patch.why.endswith(".") and patch.if_it_changes.endswith("."), patch.name


def test_nothing_is_replaced_without_a_patch() -> None:
    for file in SOURCE.rglob("*.py"):
        assert not _SET.search(file.read_text(encoding="utf-8")), file


def test_a_patch_is_applied_once_and_undone(declare: Callable[..., Patch]) -> None:
    original = vars(Kind)["double"]
    patch = declare("double", "Kind.double", "Heir.double")
    for number in (1, 10):
        patch.apply(plus(number))
    assert patch.purposes
    # What an heir has was replaced twice: where it is defined, and for the heir.
    assert (Kind().double(3), Heir().double(3)) == (7, 8)
    patch.undo()
    assert vars(Kind)["double"] is original and "double" not in vars(Heir)
    patch.apply(plus(10))
    assert Kind().double(3) == 16


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_patches_of_one_attribute_are_undone_in_any_order(
    declare: Callable[..., Patch], order: tuple[int, int]
) -> None:
    original = vars(Kind)["double"]
    two = [declare(name, "Kind.double") for name in ("first", "second")]
    two[0].apply(plus(1))
    two[1].apply(plus(10))
    assert Kind().double(0) == 11
    for number in order:
        two[number].undo()
    assert vars(Kind)["double"] is original


def test_blocks_are_nested_and_may_end_in_any_order(declare: Callable[..., Patch]) -> None:
    original = vars(Kind)["double"]
    patch = declare("double", "Kind.double")
    outer, inner = patch.applied(plus(1)), patch.applied(plus(10))
    outer.__enter__()
    with patch.applied(plus(100)):
        assert Kind().double(0) == 101
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert Kind().double(0) == 11
    inner.__exit__(None, None, None)
    assert vars(Kind)["double"] is original


def test_items_and_new_attributes(declare: Callable[..., Patch]) -> None:
    changes: list[dict[Any, int]] = []
    items = declare(
        "items",
        "here.items[one]",
        "here.items[Kind]",
        changed=lambda: changes.append(dict(here.items)),
    )
    items.apply(lambda number: number + 10)
    new = declare("new", "here.name", "here.items[new]", is_new=True)
    new.apply_by_name(lambda original, name: (original, name))
    assert here.items == {"one": 11, Kind: 12, "new": (None, "new")}
    assert here.name == (None, "name")
    for patch in (items, new):
        patch.undo()
    assert here.items == {"one": 1, Kind: 2} and not hasattr(here, "name")
    assert changes == [{"one": 11, Kind: 12}, {"one": 1, Kind: 2, "new": (None, "new")}]


def test_a_replacement_by_the_program_stays(declare: Callable[..., Patch]) -> None:
    original = vars(Kind)["double"]
    patch = declare("double", "Kind.double")
    patch.apply(plus(1))
    theirs = Kind.double = lambda self, number: 0
    try:
        patch.undo()
        assert vars(Kind)["double"] is theirs
    finally:
        Kind.double = original


def test_purposes_of_one_patch_replace_what_they_name(declare: Callable[..., Patch]) -> None:
    original = vars(Kind)["double"]
    patch = declare("double", "Kind.double", "here.items[one]")
    for number, purpose in ((1, "one"), (10, "ten"), (100, "ten")):
        replacement = functools.partial(lambda by, original, *args: original(*args) + by, number)
        patch.apply_each({"double": replacement}, purpose)
    assert Kind().double(0) == 11 and here.items["one"] == 1
    patch.undo(but=["one"])
    assert Kind().double(0) == 1 and patch.purposes == {"one"}
    patch.undo()
    assert vars(Kind)["double"] is original and not patch.purposes
    with patch.applied_each({"double": lambda original, *args: original(*args) + 5}):
        assert Kind().double(0) == 5
    assert vars(Kind)["double"] is original


def test_names_are_unique(declare: Callable[..., Patch]) -> None:
    declare("double", "Kind.double")
    with pytest.raises(AssertionError, match="'double'"):
        declare("double", "Kind.double")


def test_all_patches_of_a_run_are_undone(run_python: Callable[..., Any], tmp_path: Path) -> None:
    """After a run, pins and a watched program, TensorFlow and Keras are the same objects again."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import evener, keras, tensorflow as tf
with evener.pin("/CPU:1"):
    pinned = keras.layers.Dense(2)
model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.ones([8, 3]), tf.ones([8, 1]), batch_size=4, verbose=0)
print("trained")
"""
    )
    code = f"""
        import importlib, sys
        import evener, tensorflow as tf
        evener.use_devices("cpu:2")
        from evener import Strategy
        from evener._tf_private import patches
        for name in {DECLARING!r}:
            importlib.import_module(name)
        evener.pin, evener.use_devices

        def state():
            targets = {{t for patch in patches.registered().values() for t in patch.targets}}
            owners = {{target: patches.owner_of(target) for target in sorted(targets)}}
            return {{t: patches._own(owner, key) for t, (owner, key) in owners.items()}}

        before = state()
        from evener.run.script import Notes
        from evener.run.script import read_script
        from evener.run.session import Session
        from evener.run.device_calls import answer_as_gpus
        strategy = Strategy(devices=["cpu:0", "cpu:1"], batch_norm="per_device")
        Session(read_script({str(script)!r}), strategy, Notes()).run([])
        changed = {{target for target, value in state().items() if value is not before[target]}}
        for patch in patches.registered().values():
            if not patch.purposes:
                patch.apply(lambda original: original)
        assert len(changed) > 100, len(changed)
        for patch in patches.registered().values():
            patch.undo()
        after = state()
        print([target for target, value in after.items() if value is not before[target]])
        import keras
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(tf.ones([8, 3]), tf.ones([8, 1]), verbose=0)
        print(model.distribute_strategy.__class__.__name__)
    """
    done = run_python(code, timeout=600)
    assert done.stdout.splitlines() == ["trained", "[]", "_DefaultDistributionStrategy"]
