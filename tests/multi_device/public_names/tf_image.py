"""Calls of ``tf.image``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from multi_device.public_names.recipe import IMAGE, B, Table, call, each
from unit.graph.ops.op_case import distinct, f32, i32, ints, positive

im = tf.image
SEED = [1, 2]


def corners(rng: Any, shape: tuple[int, ...], batch: int) -> Any:
    """Return boxes as y0, x0, y1, x1 within the image."""
    low, size = rng.uniform(0, 0.4, (*shape[:-1], 2)), rng.uniform(0.2, 0.6, (*shape[:-1], 2))
    return np.concatenate([low, low + size], -1)


BOX = f32(B, 4, values=corners)
BOXES = f32(B, 5, 4, values=corners)
SCORES = f32(B, 5, values=distinct)


def suppressed(boxes: Any, scores: Any) -> Any:
    kept, count = im.non_max_suppression_padded(
        boxes, scores, 3, pad_to_max_output_size=True, sorted_input=False
    )
    return kept, count


def of_each(fn: Any) -> Any:
    """Return a function of images that maps a function of one image over them."""
    return lambda x: tf.map_fn(fn, x)


def begin_of_box(draw: Any, **seed: Any) -> Any:
    """Return a function of an image that draws a box of it."""

    def function(x: Any) -> Any:
        boxes = tf.sigmoid(tf.reduce_mean(x)) * tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        return draw(tf.shape(x), boxes, use_image_if_no_bounding_boxes=True, **seed)[0]

    return function


TABLE: Table = {
    **each(im, "flip_left_right flip_up_down image_gradients per_image_standardization", IMAGE),
    **each(im, "rgb_to_grayscale rgb_to_yiq rgb_to_yuv sobel_edges transpose rot90", IMAGE),
    **each(im, "total_variation yiq_to_rgb yuv_to_rgb adjust_gamma", IMAGE),
    **each(im, "hsv_to_rgb rgb_to_hsv", IMAGE, gradient=False),
    "adjust_brightness": call(lambda x: im.adjust_brightness(x, 0.2), IMAGE),
    "adjust_contrast": call(lambda x: im.adjust_contrast(x, 1.5), IMAGE, gradient=False),
    "adjust_hue": call(lambda x: im.adjust_hue(x, 0.2), IMAGE, gradient=False),
    "adjust_jpeg_quality": call(
        of_each(lambda x: im.adjust_jpeg_quality(x, 80)), IMAGE, gradient=False
    ),
    "adjust_saturation": call(lambda x: im.adjust_saturation(x, 1.5), IMAGE, gradient=False),
    "central_crop": call(lambda x: im.central_crop(x, 0.5), IMAGE),
    "combined_non_max_suppression": call(
        lambda b, s: tuple(im.combined_non_max_suppression(b[:, :, None], s[:, :, None], 2, 3)),
        BOXES,
        f32(B, 5, values=positive),
        gradient=False,
    ),
    "convert_image_dtype": call(
        lambda x: im.convert_image_dtype(x, tf.float32), i32(B, 4, 4, 3, values=ints(0, 200))
    ),
    "crop_and_resize": call(
        lambda x, b: im.crop_and_resize(x, b, tf.range(tf.shape(x)[0]), [3, 3]),
        IMAGE,
        BOX,
        tolerance=1e-4,
    ),
    "crop_to_bounding_box": call(lambda x: im.crop_to_bounding_box(x, 1, 2, 3, 4), IMAGE),
    "draw_bounding_boxes": call(
        lambda x, b: im.draw_bounding_boxes(x, b, [[1.0, 0.0, 0.0]]), IMAGE, BOXES, gradient=False
    ),
    "extract_glimpse": call(
        lambda x, at: im.extract_glimpse(x, [3, 3], at, noise="zero"),
        IMAGE,
        f32(B, 2, values=lambda r, s, b: r.uniform(-0.3, 0.3, s)),
        gradient=False,
    ),
    "extract_patches": call(
        lambda x: im.extract_patches(x, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"), IMAGE
    ),
    "grayscale_to_rgb": call(im.grayscale_to_rgb, f32(B, 4, 4, 1)),
    "non_max_suppression": call(
        lambda b, s: im.non_max_suppression(b, s, 3), BOX, f32(B, values=distinct), gradient=False
    ),
    "non_max_suppression_overlaps": call(
        lambda o, s: im.non_max_suppression_overlaps(o, s, 3),
        f32(B, B, values=positive),
        f32(B, values=distinct),
        gradient=False,
    ),
    "non_max_suppression_padded": call(suppressed, BOXES, SCORES, gradient=False),
    "non_max_suppression_with_scores": call(
        lambda b, s: im.non_max_suppression_with_scores(b, s, 3),
        BOX,
        f32(B, values=distinct),
        gradient=False,
    ),
    "pad_to_bounding_box": call(lambda x: im.pad_to_bounding_box(x, 1, 2, 12, 12), IMAGE),
    "psnr": call(lambda x, y: im.psnr(x, y, 1.0), IMAGE, IMAGE),
    "resize": call(lambda x: im.resize(x, [5, 6]), IMAGE),
    "resize_with_crop_or_pad": call(lambda x: im.resize_with_crop_or_pad(x, 6, 10), IMAGE),
    "resize_with_pad": call(lambda x: im.resize_with_pad(x, 6, 10), IMAGE),
    "sample_distorted_bounding_box": call(
        lambda x: tf.map_fn(begin_of_box(im.sample_distorted_bounding_box), x, tf.int32),
        IMAGE,
        gradient=False,
        compared=False,
    ),
    "ssim": call(lambda x, y: im.ssim(x, y, 1.0, filter_size=3), IMAGE, IMAGE, tolerance=2e-3),
    "ssim_multiscale": call(
        lambda x, y: im.ssim_multiscale(x, y, 1.0, power_factors=[0.5, 0.5], filter_size=3),
        IMAGE,
        IMAGE,
        tolerance=2e-3,
    ),
    "stateless_random_brightness": call(
        lambda x: im.stateless_random_brightness(x, 0.3, SEED), IMAGE
    ),
    "stateless_random_contrast": call(
        lambda x: im.stateless_random_contrast(x, 0.3, 0.8, SEED), IMAGE, gradient=False
    ),
    "stateless_random_crop": call(
        lambda x: im.stateless_random_crop(x, [tf.shape(x)[0], 5, 5, 3], SEED), IMAGE
    ),
    "stateless_random_flip_left_right": call(
        lambda x: im.stateless_random_flip_left_right(x, SEED), IMAGE
    ),
    "stateless_random_flip_up_down": call(
        lambda x: im.stateless_random_flip_up_down(x, SEED), IMAGE
    ),
    "stateless_random_hue": call(
        lambda x: im.stateless_random_hue(x, 0.3, SEED), IMAGE, gradient=False
    ),
    "stateless_random_saturation": call(
        lambda x: im.stateless_random_saturation(x, 0.3, 0.8, SEED), IMAGE, gradient=False
    ),
    "stateless_random_jpeg_quality": call(
        of_each(lambda x: im.stateless_random_jpeg_quality(x, 70, 90, SEED)), IMAGE, gradient=False
    ),
    "stateless_sample_distorted_bounding_box": call(
        lambda x: tf.map_fn(
            begin_of_box(im.stateless_sample_distorted_bounding_box, seed=SEED), x, tf.int32
        ),
        IMAGE,
        gradient=False,
    ),
    "random_brightness": call(lambda x: im.random_brightness(x, 0.3), IMAGE, compared=False),
    "random_contrast": call(
        lambda x: im.random_contrast(x, 0.3, 0.8), IMAGE, gradient=False, compared=False
    ),
    "random_crop": call(
        lambda x: im.random_crop(x, [tf.shape(x)[0], 5, 5, 3]), IMAGE, compared=False
    ),
    "random_flip_left_right": call(im.random_flip_left_right, IMAGE, compared=False),
    "random_flip_up_down": call(im.random_flip_up_down, IMAGE, compared=False),
    "random_hue": call(lambda x: im.random_hue(x, 0.3), IMAGE, gradient=False, compared=False),
    "random_saturation": call(
        lambda x: im.random_saturation(x, 0.3, 0.8), IMAGE, gradient=False, compared=False
    ),
    "random_jpeg_quality": call(
        of_each(lambda x: im.random_jpeg_quality(x, 70, 90)), IMAGE, gradient=False, compared=False
    ),
    "encode_jpeg": call(
        lambda x: tf.map_fn(
            im.encode_jpeg, tf.cast(x * 100, tf.uint8), fn_output_signature=tf.string
        ),
        IMAGE,
        gradient=False,
    ),
    "encode_png": call(
        lambda x: tf.map_fn(
            im.encode_png, tf.cast(x * 100, tf.uint8), fn_output_signature=tf.string
        ),
        IMAGE,
        gradient=False,
    ),
}
_TEXT = "reads one image from text; belongs to the input pipeline"
NOT_CALLED = (
    {"generate_bounding_box_proposals": "has no kernel on CPUs"}
    | dict.fromkeys(
        """
    decode_and_crop_jpeg decode_bmp decode_gif decode_image decode_jpeg decode_jxl decode_png
    decode_webp     extract_jpeg_shape is_jpeg
    """.split(),
        _TEXT,
    )
    | {"ResizeMethod": "names of methods"}
)
