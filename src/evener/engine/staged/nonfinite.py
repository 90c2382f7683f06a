"""A loss that is not finite: which replica, and which layer was the first.

The step looks at its loss before it updates anything. Only if the loss is NaN or infinite
does the batch come to the host, where the forward pass is repeated layer by layer with the
weights that gave that loss. The training goes on: a loss scale, for one, may mend it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.context import whole_batch
from evener.engine.staged.replica import RecordingScope
from evener.errors import warn


class NonFiniteWatch:
    """Looks at the loss of every step of one model, and explains the first that is not finite.

    Args:
        model: The model that is trained.
        pieces: What to call each piece of a batch.
    """

    def __init__(self, model: keras.Model, pieces: Sequence[str]) -> None:
        self._model = model
        self._pieces = tuple(pieces)
        self._found: tuple[float, str] | None = None
        self._told = False

    def look(self, loss: tf.Tensor, data: Any, cuts: tf.Tensor) -> tf.Tensor:
        """Look at a loss; part of the step's graph, before the update.

        Args:
            loss: Float scalar tensor.
            data: The global batch.
            cuts: Where it was cut, int32 vector.

        Returns:
            A tensor that is there once the look is over.
        """
        leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
        if not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
            leaves = []

        def explain() -> tf.Tensor:
            return tf.numpy_function(self._explainer(data), [loss, cuts, *leaves], tf.bool)

        with tf.device("/device:CPU:0"):
            return tf.cond(tf.math.is_finite(loss), lambda: tf.constant(True), explain)

    def _explainer(self, structure: Any) -> Callable[..., np.bool_]:
        def explain(loss: np.ndarray, cuts: np.ndarray, *leaves: np.ndarray) -> np.bool_:
            if self._found is None:
                where = "The batch is not made of plain tensors, so no layer can be named."
                if leaves:
                    rest = iter(leaves)
                    data = keras.tree.map_structure(
                        lambda leaf: None if leaf is None else next(rest), structure
                    )
                    where = self._where(data, cuts)
                self._found = (float(loss), where)
            return np.bool_(False)

        return explain

    def _where(self, data: Any, cuts: np.ndarray) -> str:
        for number, piece in enumerate(self._pieces):
            begin, end = int(cuts[number]), int(cuts[number + 1])
            if begin == end:
                continue
            share = keras.tree.map_structure(
                lambda leaf, b=begin, e=end: None if leaf is None else tf.constant(leaf[b:e]), data
            )
            cause = first_nonfinite(self._model, share)
            if cause is not None:
                return f"On {piece}, samples {begin} to {end - 1}: {cause}"
        return "Every layer's output is finite, so it comes from the loss or from a penalty."

    def tell(self) -> None:
        """Warn about the first loss that was not finite; called between steps."""
        if self._found is None or self._told:
            return
        self._told = True
        loss, where = self._found
        warn(
            "ENG-030",
            f"The loss is {'NaN' if math.isnan(loss) else loss}.",
            why=where,
            fix="Look at the data of that replica and at that layer; a lower learning rate or "
            "clipnorm=1.0 often helps. Training goes on.",
            stacklevel=3,
        )


def first_nonfinite(model: keras.Model, data: Any) -> str | None:
    """Return what is the first to be not finite in a forward pass, or None if nothing is.

    Args:
        model: The model, with the weights to look with.
        data: ``(x, y, sample_weight)`` as eager tensors.
    """
    for name, part in zip(("inputs", "targets", "sample weights"), data, strict=True):
        if part is not None and not all(_is_finite(leaf) for leaf in keras.tree.flatten(part)):
            return f"the {name} themselves are not finite."
    with whole_batch(), RecordingScope([], collect_losses=False), _watching() as seen:
        _tf_private.call_model(model, data[0], training=True)
    if not seen:
        return None
    layer = seen[0]
    bad = [w.path for w in layer.weights if not _is_finite(w.value)]
    if bad:
        return f"the weight {bad[0]!r} of the layer {layer.name!r} is not finite."
    return f"the output of the layer {layer.name!r} is the first that is not finite."


@contextlib.contextmanager
def _watching() -> Iterator[list[keras.Layer]]:
    """Collect the layers whose outputs are not finite, in the order in which they end."""
    seen: list[keras.Layer] = []
    call = keras.Layer.__call__

    def watched(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        outputs = call(self, *args, **kwargs)
        if not all(_is_finite(leaf) for leaf in keras.tree.flatten(outputs)):
            seen.append(self)
        return outputs

    keras.Layer.__call__ = watched
    try:
        yield seen
    finally:
        keras.Layer.__call__ = call


def _is_finite(leaf: Any) -> bool:
    tensor = tf.convert_to_tensor(leaf)
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return True
    return bool(tf.reduce_all(tf.math.is_finite(tf.cast(tensor, tf.float32))))
