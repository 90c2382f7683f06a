"""The real TensorFlow, in processes of their own: each may be laid out once."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

RunPython = Callable[..., CompletedProcess[str]]
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1", "EVENER_DEVICES": None}


@pytest.mark.long
def test_stand_ins_from_first_to_last(run_python: RunPython) -> None:
    code = """
        import json, warnings
        import evener
        from evener.devices.machine import read_tensorflow
        warnings.simplefilter("error")

        before = read_tensorflow()
        evener.inventory("cpu:7")
        import tensorflow as tf
        threading = tf.config.threading
        untouched = threading.get_inter_op_parallelism_threads()
        first = evener.use_devices("cpu:3")
        after = read_tensorflow()
        assert evener.use_devices("cpu:3") == first == evener.use_devices()
        assert evener.use_devices("cpu:2") == first[:2]
        try:
            evener.use_devices("cpu:4")
        except evener.DeviceError as error:
            refused = error.code
        print(json.dumps({
            "cuda": before.cuda_version == tf.sysconfig.get_build_info().get("cuda_version"),
            "built": before.built_with_cuda == tf.test.is_built_with_cuda(),
            "visible": before.environment.visible_devices,
            "running": [before.runtime_initialised, after.runtime_initialised],
            "cpus": [before.num_logical_cpus, after.num_logical_cpus],
            "names": [d.name for d in first],
            "logical": [d.name for d in tf.config.list_logical_devices()],
            "threads": [
                untouched,
                threading.get_intra_op_parallelism_threads(),
                threading.get_inter_op_parallelism_threads(),
            ],
            "refused": refused,
        }))
    """
    assert json.loads(run_python(code, env=HIDDEN).stdout) == {
        "cuda": True,
        "built": True,
        "visible": "-1",
        "running": [False, True],
        "cpus": [1, 3],
        "names": ["cpu:0", "cpu:1", "cpu:2"],
        "logical": ["/device:CPU:0", "/device:CPU:1", "/device:CPU:2"],
        "threads": [0, 1, 3],
        "refused": "DEV-013",
    }


@pytest.mark.long
def test_falling_back_is_one_warning(run_python: RunPython) -> None:
    code = """
        import json, warnings
        import evener

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            used = evener.use_devices("all")
        import tensorflow as tf
        print(json.dumps([
            [d.name for d in used],
            [str(w.message) for w in caught],
            [w.category.__name__ for w in caught],
            [w.filename == __file__ for w in caught],
            tf.config.threading.get_intra_op_parallelism_threads(),
        ]))
    """
    names, messages, categories, here, intra = json.loads(run_python(code, env=HIDDEN).stdout)
    assert names == ["cpu:0"]
    assert categories == ["EvenerWarning"]
    assert messages[0].startswith("[DEV-020] No GPU will be used")
    assert here == [True], "the warning points at the caller's line"
    assert intra == 0


def test_importing_evener_imports_no_tensorflow(run_python: RunPython) -> None:
    code = """
        import sys
        import evener
        evener.use_devices, evener.inventory, evener.Inventory, evener.UsedDevice
        print(sorted({"tensorflow", "keras", "numpy", "rich"} & set(sys.modules)))
    """
    assert run_python(code).stdout.strip() == "[]"
