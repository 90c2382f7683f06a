"""Attributes of `evener._tf_private.graphs` are what TensorFlow's operations take."""

from __future__ import annotations

import pytest
import tensorflow as tf

from evener._tf_private import graphs
from unit._tf_private.functions import registered, registered_node, run_registered

pytestmark = pytest.mark.usefixtures("logical_cpus")


def test_attributes_of_a_loop() -> None:
    specs = (tf.TensorSpec([], tf.int32), tf.TensorSpec([]))
    condition = registered(lambda k, x: k < 3, *specs)
    body = registered(lambda k, x: (k + 1, x * 2.0), *specs)
    attrs = {
        "T": graphs.type_list([tf.int32, tf.float32]),
        "cond": graphs.function_reference(condition.name.decode()),
        "body": graphs.function_reference(body.name.decode()),
        "output_shapes": graphs.unknown_shapes(2),
        "parallel_iterations": graphs.AttrValue(i=10),
        "_lower_using_switch_merge": graphs.AttrValue(b=True),
    }
    name = registered_node("StatelessWhile", attrs, "output:1")
    assert run_registered(name, 0, 1.0) == 8.0


def test_attributes_of_a_choice_of_several() -> None:
    branches = [registered(lambda x, k=k: x + k) for k in (1.0, 2.0)]
    attrs = {
        "branches": graphs.function_references([branch.name.decode() for branch in branches]),
        "Tin": graphs.type_list([tf.float32]),
        "Tout": graphs.type_list([tf.float32]),
        "output_shapes": graphs.unknown_shapes(1),
    }
    name = registered_node("StatelessCase", attrs, "output:0")
    assert [run_registered(name, k, 1.0) for k in (0, 1)] == [2.0, 3.0]
