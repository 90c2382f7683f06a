"""Set-up that all tests share: one TensorFlow with five logical CPUs, subprocesses, hypothesis.

TensorFlow fixes its devices when it runs its first operation, and a test process runs many
tests. So the logical CPUs are made once, before the first test, if any test of the run needs
them; a test that needs other devices runs a subprocess (`run_python`).
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

# Read by TensorFlow and Keras when they are imported, so it comes before every other import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
# TensorFlow's default depends on the processor. Without oneDNN, CPUs have no convolutions of NCHW,
# and their memory is not counted.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
# Thousands of steps are compared with one device anyway; tests of the check itself turn it on.
os.environ["EVENER_VERIFY"] = "0"
# Without compiled files, each of a hundred processes would compile TensorFlow: 8 s instead of 3.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import hypothesis
import pytest

from evener.base.libraries import paused_collector
from turns import not_in_turn, turn_of

TESTS = Path(__file__).parent
ROOT = TESTS.parent
# Tests in these folders run on the logical CPUs without asking for them.
ON_LOGICAL_CPUS = (
    TESTS / "conformance",
    TESTS / "exactness",
    TESTS / "multi_device",
    TESTS / "unit" / "graph",
    TESTS / "unit" / "partition",
    TESTS / "unit" / "profiler",
    TESTS / "unit" / "strategy",
    TESTS / "workers",
    ROOT / "src" / "evener" / "graph",
    ROOT / "src" / "evener" / "partition",
    ROOT / "src" / "evener" / "profiler",
    ROOT / "src" / "evener" / "strategy",
)
# Files whose single tests take longest. They run first: a worker that got one at the end would
# go on alone while the others have nothing left to do.
LONGEST_FIRST = (
    TESTS / "workers" / "test_fits.py",
    TESTS / "cli" / "test_launch.py",
    TESTS / "multi_device" / "test_memory.py",
    TESTS / "exactness" / "test_drawn.py",
    TESTS / "cli" / "test_plan.py",
    TESTS / "cli" / "test_run.py",
    TESTS / "cli" / "test_gpu_programs.py",
    TESTS / "unit" / "doctor" / "watch" / "test_training.py",
    TESTS / "multi_device" / "test_audit.py",
)
# TensorFlow rewrites graphs before it runs them. Here it does not: that takes a quarter of the
# time, and what these tests look at is in the graph before. Programs run with it, as do the others.
AS_WRITTEN = (
    TESTS / "conformance",
    TESTS / "exactness",
    TESTS / "multi_device" / "test_public_names.py",
    TESTS / "unit" / "graph",
    TESTS / "unit" / "partition",
    TESTS / "unit" / "strategy",
)
REWRITTEN = (TESTS / "exactness" / "test_models.py",)
# Of the tests in these folders that are not marked, one in so many stays in `make test`, where no
# paths are named: they train or start processes, and a fault is seen in several of them.
ONE_IN = {
    TESTS / "checkpoint": 2,
    TESTS / "cli": 7,
    TESTS / "conformance": 6,
    TESTS / "exactness": 25,
    TESTS / "multi_device": 11,
    TESTS / "unit" / "_tf_private": 2,
    TESTS / "unit" / "auditing": 5,
    TESTS / "unit" / "doctor" / "watch": 2,
    TESTS / "unit" / "graph": 5,
    TESTS / "unit" / "graph" / "ops": 5,
    TESTS / "unit" / "partition": 5,
    TESTS / "unit" / "profiler": 5,
    TESTS / "unit" / "recording": 5,
    TESTS / "unit" / "strategy": 11,
    TESTS / "workers": 3,
}
SEED = 20
# Checkpoints wait until the disk has them, which takes longer than what is tested: from memory, a
# resumed fit takes half of the time.
MEMORY = Path("/dev/shm")
# Programs that tests run: to import them would be to train.
collect_ignore = ["programs", "corpus"]

hypothesis.settings.register_profile(
    "default",
    max_examples=4,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# More draws, the same ones every time: no landing fails by chance.
hypothesis.settings.register_profile(
    "all",
    max_examples=6,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# Other draws every time, for hours.
hypothesis.settings.register_profile(
    "campaign",
    max_examples=200,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
PROFILE = os.environ.get("EVENER_HYPOTHESIS_PROFILE", "default")
hypothesis.settings.load_profile(PROFILE)

# A landing runs half of the long cases, so that all of them take no hour: of each test every second
# one. What is in src/ says which half. EVENER_TURNS=1 runs all.
TURNS = int(os.environ.get("EVENER_TURNS") or 2)

RunPython = Callable[..., subprocess.CompletedProcess[str]]


def needs_logical_cpus(item: pytest.Item) -> bool:
    asks = "logical_cpus" in getattr(item, "fixturenames", ())
    return asks or any(item.path.is_relative_to(folder) for folder in ON_LOGICAL_CPUS)


@functools.cache
def make_logical_cpus() -> tuple[str, ...]:
    import tensorflow as tf

    from exactness.stand_ins import make_stand_ins

    # The reference runs on the CPU too: a GPU rounds differently.
    tf.config.set_visible_devices([], "GPU")
    return make_stand_ins()


def pytest_configure(config: pytest.Config) -> None:
    """Take a folder in memory for files, and one for results that all processes share."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="evener-references-")
        config.add_cleanup(folder.cleanup)
        os.environ["EVENER_TEST_REFERENCES"] = folder.name
        if config.args_source is pytest.Config.ArgsSource.ARGS:
            os.environ["EVENER_TESTS_ARE_NAMED"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests, and TensorFlow with them, without a search for garbage."""
    with paused_collector():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Leave out pytest's search for examples in docstrings: tests have none, and it takes long."""
    found = yield
    return [node for node in found if type(node) is pytest.Module]


def covering(items: list[pytest.Function], num_meet: int) -> Iterator[pytest.Function]:
    """Choose cases of one test, so that so many values of its parameters meet in one of them."""
    meetings = {}
    for item in items:
        values = [(name, repr(value)) for name, value in item.callspec.params.items()]
        meetings[item] = set(itertools.combinations(values, min(num_meet, len(values))))
    left = set().union(*meetings.values())
    while left:
        best = max(meetings, key=lambda item: len(meetings[item] & left))
        left -= meetings.pop(best)
        yield best


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return cases of tests that are ``covering(n)`` in which nothing meets that does not else."""
    tests = collections.defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("covering"):
            tests[item.path, item.originalname, marker.args[0]].append(item)
    return {
        item
        for (_, _, num_meet), cases in tests.items()
        if hasattr(cases[0], "callspec")
        for item in set(cases).difference(covering(cases, num_meet))
    }


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of tests that are ``covering(n)``, and mark those not sampled as long.

    Of the cases of a test that is ``sampled(n)``, one in n stays in `make test`, and of other tests
    of a folder what `ONE_IN` says.
    """
    repeated = left_out(items) if PROFILE != "campaign" else set()
    config.hook.pytest_deselected(items=list(repeated))
    items[:] = [item for item in items if item not in repeated]
    order = {path: place for place, path in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    counted: collections.Counter[str] = collections.Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if item.get_closest_marker("long"):
            continue
        test, one_in = str(item.path.parent), 1
        if "EVENER_TESTS_ARE_NAMED" not in os.environ:
            one_in = ONE_IN.get(item.path.parent, 1)
        if sampled is not None:
            test, one_in = f"{test}::{getattr(item, 'originalname', item.name)}", sampled.args[0]
        if counted[test] % one_in:
            item.add_marker(pytest.mark.long)
        counted[test] += 1
    if "EVENER_TESTS_ARE_NAMED" not in os.environ:
        others = [item for item in items if item.get_closest_marker("long")]
        others = list(not_in_turn(others, turn_of(ROOT / "src"), TURNS))
        config.hook.pytest_deselected(items=others)
        left = set(items).difference(others)
        items[:] = [item for item in items if item in left]


def pytest_report_header() -> str:
    turn = turn_of(ROOT / "src") % TURNS + 1
    return f"long cases: those of turn {turn} of {TURNS}, by the content of src/"


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    # Before the first test: any test may run TensorFlow's first operation.
    if any(map(needs_logical_cpus, session.items)):
        make_logical_cpus()
    # Tracing makes thousands of objects at once: with Python's own thresholds, a tenth of the time
    # of tests that train is spent in the collector.
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(scope="session")
def logical_cpus() -> tuple[str, ...]:
    """The names of five logical CPUs, of one thread each: ``("cpu:0", ..., "cpu:4")``."""
    return make_logical_cpus()


@pytest.fixture
def patches_undone() -> Iterator[None]:
    """Undo the patches of TensorFlow and Keras that the test has applied."""
    from evener._tf_private import patches

    before = {name: patch.purposes for name, patch in patches.registered().items()}
    yield
    for name, patch in patches.registered().items():
        patch.undo(but=before.get(name, ()))


@pytest.fixture(autouse=True)
def fresh_keras(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start every test that trains from one seed, in float32, with no layer names in use."""
    if not needs_logical_cpus(request.node):
        yield
        return
    import keras

    from evener.strategy import strategy

    # What a module's fixtures hold is not what the program of this test left unused.
    strategy._STRATEGIES.clear()
    keras.utils.set_random_seed(SEED)
    yield
    keras.config.set_dtype_policy("float32")
    # Collecting garbage after every test would cost more than many of the tests.
    keras.utils.clear_session(free_memory=False)


@pytest.fixture(autouse=True, scope="module")
def graphs_as_written(request: pytest.FixtureRequest) -> Iterator[None]:
    """Turn off TensorFlow's rewriting of graphs where it is not looked at."""
    path = request.path
    if path in REWRITTEN or not any(path.is_relative_to(place) for place in AS_WRITTEN):
        yield
        return
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture(autouse=True, scope="module")
def free_graphs() -> Iterator[None]:
    """Free the graphs that TensorFlow would keep, at the end of every module.

    Under a strategy, Keras's optimizers reduce gradients by a function with a custom gradient.
    TensorFlow registers every custom gradient of a graph under a name of its own and never
    forgets it, and so neither the graph nor the strategy: a worker grew by gigabytes.
    """
    yield
    if "tensorflow" not in sys.modules:
        return
    from tensorflow.python.framework import ops  # noqa: TID251

    gradients = ops.gradient_registry._registry
    for name in [name for name in gradients if name.startswith("CustomGradient-")]:
        del gradients[name]
    gc.collect()


CUT_CPU = """\
from evener.base.libraries import paused_collector as _paused
with _paused():
    import tensorflow as _tf
_tf.config.set_visible_devices([], "GPU")
_tf.config.set_logical_device_configuration(
    _tf.config.list_physical_devices("CPU")[0],
    [_tf.config.LogicalDeviceConfiguration()] * {num_cpus},
)
_tf.config.threading.set_intra_op_parallelism_threads(1)
_tf.config.threading.set_inter_op_parallelism_threads(max(2, {num_cpus}))
"""


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run code in a Python of its own.

    ``run_python(code, env=None, num_cpus=None, timeout=120, check=True)`` returns the
    completed process with its text output. Values of None in ``env`` unset a variable.
    ``num_cpus`` logical CPUs are made first; without it, TensorFlow is left alone. With
    ``check``, the test fails when the process does.
    """

    def run(
        code: str,
        *,
        env: Mapping[str, str | None] | None = None,
        num_cpus: int | None = None,
        timeout: float = 120,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        # A file, not -c: AutoGraph and tracebacks read the source.
        script = tmp_path / "script.py"
        cut = "" if num_cpus is None else CUT_CPU.format(num_cpus=num_cpus)
        script.write_text(cut + textwrap.dedent(code), encoding="utf-8")
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        merged = {**os.environ, "PYTHONPATH": path, **(env or {})}
        done = subprocess.run(
            [sys.executable, str(script)],
            env={name: value for name, value in merged.items() if value is not None},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            pytest.fail(f"the process ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    return run
