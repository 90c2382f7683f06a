"""Images of a batch: sizes, crops, patches, colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unit.engine.sharding.op_case import (
    B,
    OpCase,
    Shape,
    case,
    distinct,
    f32,
    i32,
    ints,
    positive,
)

IMAGE: Shape = (B, 4, 6, 3)
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


CASES: tuple[OpCase, ...] = (
    *(
        case(
            name,
            fn,
            f32(*IMAGE, values=positive),
            expect="any" if name in NO_RULE else "sharded",
            gradient=name not in NO_GRADIENT,
            tolerance=2e-3 if name == "ssim" else 1e-4,
        )
        for name, fn in IMAGES.items()
    ),
    case(
        "crop_and_resize",
        crop_and_resize,
        f32(B, 4, 4, 2),
        f32(3, 4, values=positive),
        i32(3, values=ints(0, B)),
        expect="any",
        tolerance=1e-4,
    ),
    case(
        "crop_for_each_sample",
        lambda x, boxes: crop_and_resize(x, boxes, tf.range(tf.shape(x)[0])),
        f32(B, 4, 4, 2),
        f32(B, 4, values=positive),
        expect="any",
        tolerance=1e-4,
    ),
    case(
        "fractional_max_pool",
        lambda x: tf.nn.fractional_max_pool(x, 1.5, seed=3)[0],
        f32(B, 5, 5, 1, values=distinct),
        expect="any",
    ),
    case(
        "adjust_hue",
        lambda x: tf.image.adjust_hue(x, 0.2),
        f32(*IMAGE, values=positive),
        gradient=False,
        expect="any",
    ),
    case(
        "non_max_suppression",
        lambda x, s: tf.image.non_max_suppression(x, s, 3),
        f32(B, 4, values=positive),
        f32(B, values=distinct),
        gradient=False,
        expect="any",
    ),
    case(
        "max_pool_with_argmax",
        lambda x: tuple(tf.nn.max_pool_with_argmax(x, 2, 2, "VALID")),
        f32(B, 4, 4, 2, values=distinct),
        expect="any",
    ),
    case(
        "max_pool_with_argmax_of_batch",
        lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "VALID", include_batch_in_index=True).argmax,
        f32(B, 4, 4, 2, values=distinct),
        expect="any",
        gradient=False,
    ),
)
