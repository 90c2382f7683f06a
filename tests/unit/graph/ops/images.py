"""Images of a batch: sizes, crops, patches, colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unit.graph.ops.op_case import (
    OpCase,
    case,
    loose,
)

IMAGES: dict[str, Callable[[Any], Any]] = {
    "resize_bilinear": lambda x: tf.image.resize(x, [6, 5]),
    "resize_smaller": lambda x: tf.image.resize(x, [2, 3], antialias=True),
    "resize_nearest": lambda x: tf.image.resize(x, [6, 5], "nearest"),
    "resize_bicubic": lambda x: tf.image.resize(x, [6, 5], "bicubic"),
    "resize_area": lambda x: (
        tf.image.resize(tf.stop_gradient(x), [2, 3], "area") * tf.reduce_sum(x)
    ),
    "extract_patches": lambda x: tf.image.extract_patches(
        x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"
    ),
    "adjust_contrast": lambda x: tf.image.adjust_contrast(x, 1.5),
    "adjust_brightness": lambda x: tf.image.adjust_brightness(x, 0.3),
    "flip_left_right": tf.image.flip_left_right,
    "flip_up_down": tf.image.flip_up_down,
    "rotate": tf.image.rot90,
    "transpose": tf.image.transpose,
    "crop": lambda x: tf.image.crop_to_bounding_box(x, 1, 2, 2, 3),
    "central_crop": lambda x: tf.image.central_crop(x, 0.5),
    "pad": lambda x: tf.image.pad_to_bounding_box(x, 1, 1, 7, 9),
    "resize_with_crop_or_pad": lambda x: tf.image.resize_with_crop_or_pad(x, 5, 5),
    "standardize": tf.image.per_image_standardization,
    "total_variation": tf.image.total_variation,
    "gradients": tf.image.image_gradients,
    "sobel": tf.image.sobel_edges,
    "to_gray": tf.image.rgb_to_grayscale,
    "ssim": lambda x: tf.image.ssim(x, x + 0.1, 1.0, filter_size=3),
    "lrn": lambda x: tf.nn.local_response_normalization(x, 1),
    "dilation": lambda x: tf.nn.dilation2d(
        x, tf.ones([2, 2, 3]), [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]
    ),
    "frames": lambda x: tf.signal.frame(x, 2, 1, axis=1),
    "moments_of_images": lambda x: tf.nn.moments(x, [1, 2], keepdims=True),
}
NO_GRADIENT = ("adjust_contrast", "rotate")
NO_RULE = ("dilation", "resize_bicubic", "resize_area", "ssim", "frames", "rotate")


def crop_and_resize(images: Any, boxes: Any, numbers: Any) -> Any:
    return tf.image.crop_and_resize(images, boxes, numbers, [2, 2])


def transformed(images: Any, transforms: Any) -> Any:
    """Transforms near the one that changes nothing."""
    near = [1.0, 0.1, 0.3, -0.1, 1.0, 0.2, 0.0, 0.0]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=0.1 * transforms * [1.0] * 8 + near,
        output_shape=[4, 5],
        fill_value=0.5,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )


def suppressed(boxes: Any, scores: Any) -> Any:
    found = tf.image.combined_non_max_suppression(boxes[:, :, None], scores[:, :, None], 2, 3)
    return tuple(found)


CASES: tuple[OpCase, ...] = (
    loose("transform_of_each", "B 4 5 2, B 8", transformed, gradient=False, tolerance=1e-3),
    loose("transform_of_all", "B 4 5 2, 1 8", transformed, gradient=False, tolerance=1e-3),
    loose("combined_suppression", "positive B 5 4, distinct B 5", suppressed, gradient=False),
    loose(
        "drawn_boxes",
        "positive B 4 4 3, positive B 2 4",
        # The kernel draws on images of 1, 3 or 4 channels.
        lambda x, b: tf.image.draw_bounding_boxes(x, b - 0.5, [[1.0, 0.0, 0.5]]),
        gradient=False,
    ),
    loose(
        "glimpse",
        "B 5 5 1, B 2",
        lambda x, at: tf.image.extract_glimpse(x, [3, 3], 0.1 * at, noise="zero"),
        gradient=False,
    ),
    case(
        "blocks_as_rows",
        "B 4 4 2",
        lambda x: tf.batch_to_space(
            3 * tf.space_to_batch(x, [2, 2], [[1, 1], [0, 2]]), [2, 2], [[1, 1], [0, 2]]
        ),
    ),
    loose(
        "dilated_convolution",
        "B 5 5 2, 2 2 2 3",
        lambda x, w: tf.nn.convolution(x, w, dilations=2, padding="SAME"),
        tolerance=3e-5,
    ),
    *(
        case(
            name,
            "positive B 4 6 3",
            fn,
            expect="any" if name in NO_RULE else "sharded",
            gradient=name not in NO_GRADIENT,
            tolerance=2e-3 if name == "ssim" else 1e-4,
        )
        for name, fn in IMAGES.items()
    ),
    loose("crop_and_resize", "B 4 4 2, positive 3 4, int<B 3", crop_and_resize, tolerance=1e-4),
    loose(
        "crop_for_each_sample",
        "B 4 4 2, positive B 4",
        lambda x, boxes: crop_and_resize(x, boxes, tf.range(tf.shape(x)[0])),
        tolerance=1e-4,
    ),
    loose(
        "fractional_max_pool",
        "distinct B 5 5 1",
        lambda x: tf.nn.fractional_max_pool(x, 1.5, seed=3)[0],
    ),
    loose("adjust_hue", "positive B 4 6 3", lambda x: tf.image.adjust_hue(x, 0.2), gradient=False),
    loose(
        "non_max_suppression",
        "positive B 4, distinct B",
        lambda x, s: tf.image.non_max_suppression(x, s, 3),
        gradient=False,
    ),
    loose(
        "max_pool_with_argmax",
        "distinct B 4 4 2",
        lambda x: tuple(tf.nn.max_pool_with_argmax(x, 2, 2, "VALID")),
    ),
    loose(
        "max_pool_with_argmax_of_batch",
        "distinct B 4 4 2",
        lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "VALID", include_batch_in_index=True).argmax,
        gradient=False,
    ),
)
