"""Attributes of `evener.tf_compat.graphs` are what TensorFlow's operations take."""

from __future__ import annotations

import pytest
import tensorflow as tf

from evener.tf_compat import graphs
from unit.tf_compat.functions import Owner, registered, registered_node, run_registered

pytestmark = pytest.mark.usefixtures("logical_cpus")


def test_attributes_of_a_loop() -> None:
    owner, specs = Owner(), (tf.TensorSpec([], tf.int32), tf.TensorSpec([]))
    attrs = {
        "T": graphs.type_list([tf.int32, tf.float32]),
        "cond": graphs.function_reference(registered(lambda k, x: k < 3, owner, *specs)),
        "body": graphs.function_reference(registered(lambda k, x: (k + 1, x * 2.0), owner, *specs)),
        "output_shapes": graphs.unknown_shapes(2),
        "parallel_iterations": graphs.AttrValue(i=10),
        "_lower_using_switch_merge": graphs.AttrValue(b=True),
    }
    name = registered_node("StatelessWhile", attrs, "output:1", owner)
    assert run_registered(name, 0, 1.0) == 8.0


def test_attributes_of_a_choice_of_several() -> None:
    owner = Owner()
    attrs = {
        "branches": graphs.function_references(
            [registered(lambda x, k=k: x + k, owner) for k in (1.0, 2.0)]
        ),
        "Tin": graphs.type_list([tf.float32]),
        "Tout": graphs.type_list([tf.float32]),
        "output_shapes": graphs.unknown_shapes(1),
    }
    name = registered_node("StatelessCase", attrs, "output:0", owner)
    assert [run_registered(name, k, 1.0) for k in (0, 1)] == [2.0, 3.0]
