"""Images and linear algebra: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import EVEN, B, S, T, case, f32, gradient_of, i32

LINALG = [
    case("inverse", gradient_of(lambda x: tf.linalg.inv(x + 4 * tf.eye(3))), f32(B, 3, 3)),
    case(
        "cholesky",
        gradient_of(
            lambda x: tf.linalg.cholesky(x @ tf.linalg.matrix_transpose(x) + 4 * tf.eye(3))
        ),
        f32(B, 3, 3),
    ),
    case(
        "solve",
        gradient_of(lambda x, y: tf.linalg.solve(x + 4 * tf.eye(3), y)),
        f32(B, 3, 3),
        f32(B, 3, 2),
    ),
    case(
        "triangular",
        lambda x, y: tf.linalg.triangular_solve(x + 4 * tf.eye(3), y),
        f32(B, 3, 3),
        f32(B, 3, T),
    ),
    case(
        "triangular_broadcast",
        lambda x, y: tf.linalg.triangular_solve(x + 4 * tf.eye(3), y),
        f32(3, 3),
        f32(B, 3, 2),
    ),
    case("qr", lambda x: (tf.linalg.qr(x), tf.linalg.qr(x, full_matrices=True)), f32(B, 4, 3)),
    case("svd", lambda x: tf.linalg.svd(x), f32(B, 4, 3)),
    case("svd_unknown", lambda x: tf.linalg.svd(x), f32(B, T, 3)),
    case(
        "eigen",
        lambda x: (tf.linalg.eigh(x), tf.linalg.det(x), tf.linalg.logdet(x @ x)),
        f32(B, 3, 3),
    ),
    case("least_squares", lambda x, y: tf.linalg.lstsq(x, y), f32(B, 4, 3), f32(B, 4, 2)),
    case(
        "diag",
        lambda x: (
            tf.linalg.diag(x),
            tf.linalg.diag(x[0]),
            tf.linalg.diag(x, k=1),
            tf.linalg.tensor_diag(x[0]),
        ),
        f32(B, 3),
    ),
    case("diag_of_batch", lambda x: (tf.linalg.diag(x), tf.linalg.diag(x, k=-1)), f32(B)),
    case(
        "diag_part",
        lambda x: (
            tf.linalg.diag_part(x),
            tf.linalg.diag_part(x[0]),
            tf.linalg.diag_part(x, k=(-1, 1)),
        ),
        f32(B, 3, 4),
    ),
    case("diag_part_unknown", lambda x: (tf.linalg.diag_part(x), tf.linalg.trace(x)), f32(B, T, S)),
    case("diag_part_of_matrix", lambda x: tf.linalg.diag_part(x), f32(B, 3)),
    case(
        "band_part",
        lambda x: (tf.linalg.band_part(x, 0, -1), tf.linalg.set_diag(x, x[:, 0])),
        f32(B, 3, 3),
    ),
    case(
        "cross",
        lambda x: (tf.linalg.cross(x, x), tf.linalg.matvec(tf.linalg.diag(x), x)),
        f32(B, 3),
    ),
]

IMAGES = [
    case("resize", gradient_of(lambda x: tf.image.resize(x, [6, 8])), f32(B, 3, 4, 2)),
    case(
        "resize_nearest",
        gradient_of(lambda x: tf.image.resize(x, [6, 8], "nearest")),
        f32(B, T, S, 2),
    ),
    case(
        "resize_unknown",
        gradient_of(lambda x: tf.image.resize(x, 2 * tf.shape(x)[1:3])),
        f32(B, T, S, 2),
    ),
    case(
        "resize_cubic",
        gradient_of(lambda x: tf.image.resize(x, [6, 8], "bicubic")),
        f32(B, 3, 4, 2),
    ),
    case(
        "resize_area",
        lambda x: (tf.image.resize(x, [2, 2], "area"), tf.image.resize(x, [2, 2], "lanczos3")),
        f32(B, 4, 4, 2),
    ),
    case(
        "depth_to_space",
        lambda x: (tf.nn.depth_to_space(x, 2), tf.nn.space_to_depth(x, 2)),
        f32(B, 2, 4, 4),
    ),
    case("depth_to_space_unknown", lambda x: tf.nn.depth_to_space(x, 2), f32(B, T, S, 4)),
    case(
        "space_to_batch", lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), f32(B, 4, 4, 2)
    ),
    case(
        "batch_to_space",
        lambda x: tf.space_to_batch(
            tf.batch_to_space(x, [2, 1], [[0, 0], [0, 0]]), [2, 1], [[0, 0], [0, 0]]
        ),
        f32(B, 2, 2, 1),
        runs=EVEN,
    ),
    case(
        "patches",
        lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID"),
        f32(B, 4, T, 2),
        runs=EVEN,
    ),
    case(
        "crop_and_resize",
        lambda x, b: tf.image.crop_and_resize(x, b, tf.range(tf.shape(x)[0]), [3, 3]),
        f32(B, 5, 5, 2),
        f32(B, 4),
    ),
    case(
        "crop_boxes",
        lambda x, b, n: tf.image.crop_and_resize(x, b, n * 0, [3, 3]),
        f32(B, 5, 5, 2),
        f32(T, 4),
        i32(T),
    ),
    case(
        "flips",
        lambda x: (
            tf.image.flip_left_right(x),
            tf.image.rot90(x),
            tf.image.transpose(x),
            tf.image.random_flip_up_down(x),
        ),
        f32(B, 3, 4, 3),
    ),
    case(
        "colors",
        lambda x: (
            tf.image.rgb_to_hsv(x),
            tf.image.adjust_hue(x, 0.1),
            tf.image.adjust_saturation(x, 2.0),
            tf.image.adjust_contrast(x, 2.0),
            tf.image.rgb_to_grayscale(x),
        ),
        f32(B, 3, 4, 3),
    ),
    case(
        "central_crop",
        lambda x: (tf.image.central_crop(x, 0.5), tf.image.resize_with_crop_or_pad(x, 3, 9)),
        f32(B, 6, 6, 3),
    ),
    case(
        "projective",
        lambda x: tf.raw_ops.ImageProjectiveTransformV3(
            images=x,
            transforms=tf.ones([1, 8]),
            output_shape=[5, 6],
            fill_value=0.0,
            interpolation="BILINEAR",
        ),
        f32(B, 4, 4, 2),
    ),
    case(
        "sobel", lambda x: (tf.image.sobel_edges(x), tf.image.image_gradients(x)), f32(B, 4, 4, 2)
    ),
    case(
        "ssim", lambda x: (tf.image.psnr(x, x, 1.0), tf.image.total_variation(x)), f32(B, 12, 12, 1)
    ),
    case("boxes", lambda x, s: tf.image.non_max_suppression(x, s, 3), f32(B, 4), f32(B)),
]

SPECTRA = [
    case(
        "spectra",
        gradient_of(lambda x: tf.math.real(tf.signal.rfft(x)) + tf.abs(tf.signal.rfft(x, [8]))),
        f32(B, T, 8),
    ),
    case("spectra_back", lambda x: tf.signal.irfft2d(tf.cast(x, tf.complex64)), f32(B, 4, 5)),
    case(
        "frames_of_images",
        gradient_of(lambda x: tf.signal.overlap_and_add(tf.signal.frame(x, 4, 2), 3)),
        f32(B, 12),
    ),
    case(
        "rows_of_blocks",
        lambda x: tf.batch_to_space(
            tf.space_to_batch(x, [2, 3], [[1, 1], [0, 2]]), [2, 3], [[0, 1], [1, 1]]
        ),
        f32(B, 4, 4, 2),
    ),
    case(
        "crop_again",
        gradient_of(lambda x: tf.image.pad_to_bounding_box(x, 1, 2, 8, 9)),
        f32(B, 4, 5, 2),
    ),
    case("repeated_columns", gradient_of(lambda x: tf.repeat(x, 3, axis=1)), f32(B, 4)),
    case("largest", gradient_of(lambda x: tf.nn.top_k(x, 2).values), f32(B, 4)),
    case("steps_of_three", lambda x: tf.range(0, 3 * tf.shape(x)[0], 3), f32(B)),
    case("products", gradient_of(lambda x: tf.reduce_prod(x, 1)), f32(B, 4)),
    case(
        "remainder_of_one",
        lambda x, n: tf.slice(x, tf.concat([n, n], 0) % [1, 2], [tf.shape(x)[0], 3]),
        f32(B, 4),
        i32(1),
    ),
    case("searched", lambda x: tf.searchsorted([0.5, 1.0], tf.reshape(x, [-1])), f32(B, 3)),
    case("counts", lambda x: tf.math.bincount(x, minlength=4, maxlength=4, axis=-1), i32(B, 5)),
    case(
        "unknown_windows",
        gradient_of(lambda x: tf.nn.convolution(x, tf.ones([2, 2, 2, 3]), dilations=2)),
        f32(B, 5, 6, 2),
    ),
]
