"""Products, reductions, signals, linear algebra and images: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import EVEN, B, T, gradient_of

MATHS = {
    "matmul": ("B 3, 3 4", gradient_of(lambda x, y: x @ y)),
    "matmul_transposed": (
        "B T",
        lambda x: (tf.matmul(x, x, transpose_b=True), tf.matmul(x, x, transpose_a=True)),
    ),
    "batch_matmul": ("B T 4, B S 4", gradient_of(lambda x, y: tf.matmul(x, y, transpose_b=True))),
    "batch_matmul_broadcast": ("B 2 T 4, 2 4 3", gradient_of(lambda x, y: x @ y)),
    "einsum": ("B T 4, 4 2", gradient_of(lambda x, y: tf.einsum("btd,de->bte", x, y))),
    "einsum_heads": ("B T 2 3, B S 2 3", lambda x, y: tf.einsum("bthd,bshd->bhts", x, y)),
    "einsum_ellipsis": ("B T 4, 4 2", lambda x, y: tf.einsum("...d,de->...e", x, y)),
    "einsum_trace": ("B 3 3", lambda x: (tf.einsum("bii->b", x), tf.einsum("bij->", x))),
    "tensordot": ("B T 4, 4 2 3", gradient_of(lambda x, y: tf.tensordot(x, y, [[2], [0]]))),
    "reductions": (
        "B T 4",
        lambda x: (
            tf.reduce_sum(x, 0),
            tf.reduce_mean(x, [0, -1]),
            tf.reduce_max(x),
            tf.reduce_prod(x, -1, keepdims=True),
            tf.math.reduce_std(x, 1),
        ),
    ),
    "logical": (
        "B T",
        lambda x: (tf.reduce_all(x > 0, 0), tf.reduce_any(x > 0, [1]), tf.math.count_nonzero(x, 1)),
    ),
    "gradient_of_reductions": (
        "B T",
        gradient_of(lambda x: tf.reduce_mean(x, 1) * tf.reduce_max(x, -1)),
    ),
    "gradient_of_prod": ("B 3", gradient_of(lambda x: tf.reduce_prod(x, 1))),
    "log_sum_exp": (
        "B T",
        lambda x: (tf.reduce_logsumexp(x, -1), tf.math.reduce_euclidean_norm(x, 0)),
    ),
    "cumulative": ("B T", gradient_of(lambda x: tf.cumsum(x, 1) + tf.math.cumprod(x, 0))),
    "gradient_of_broadcast": ("B T, T", gradient_of(lambda x, y: x * y)),
    "gradient_of_broadcast_rows": ("B 3, B 1", gradient_of(lambda x, y: x * y)),
    "gradient_of_broadcast_unknown": (
        "B 3, T 3",
        gradient_of(lambda x, y: x * y),
        [{B: 3, T: 1}, {B: 1, T: 4}, {B: 1, T: 1}],
    ),
    "gradient_of_where": ("B 3, 1 3", gradient_of(lambda x, y: tf.where(x > 1.0, x, y))),
    "norms": ("B 3", gradient_of(lambda x: tf.linalg.l2_normalize(x, 1) + tf.linalg.norm(x))),
    "clip": ("B 3", gradient_of(lambda x: tf.clip_by_norm(tf.clip_by_value(x, 0.6, 1.2), 1.0))),
    "complex": (
        "B 4",
        lambda x: (tf.complex(x, x), tf.math.real(tf.complex(x, x)), tf.abs(tf.complex(x, x))),
    ),
    "bitcast": (
        "B 3",
        lambda x: (
            tf.bitcast(x, tf.int32),
            tf.bitcast(x, tf.uint8),
            tf.bitcast(tf.bitcast(x, tf.uint8), tf.float32),
        ),
    ),
    "bitcast_wider": ("int B 3 2", lambda n: tf.bitcast(n, tf.int64)),
    "roll": (
        "B 3",
        lambda x: (
            tf.roll(x, 1, 0),
            tf.reverse(x, [0]),
            tf.reverse_sequence(x, tf.ones([tf.shape(x)[0]], tf.int32), 1),
        ),
    ),
    "fft": (
        "B 8",
        lambda x: (
            tf.signal.rfft(x),
            tf.signal.irfft(tf.signal.rfft(x)),
            tf.signal.fft(tf.cast(x, tf.complex64)),
        ),
    ),
    "fft_unknown": (
        "B T",
        lambda x: (tf.signal.rfft(x), tf.signal.rfft(x, [4]), tf.signal.irfft(tf.signal.rfft(x))),
        EVEN,
    ),
    "fft2d": ("B 4 6", lambda x: (tf.signal.rfft2d(x), tf.signal.fft2d(tf.cast(x, tf.complex64)))),
    "frames": ("B 10", lambda x: tf.signal.frame(x, 4, 2)),
    "stft": ("B 10", lambda x: tf.signal.stft(x, 4, 2)),
    "strings": (
        "int B 3",
        lambda n: (tf.strings.as_string(n), tf.strings.length(tf.strings.as_string(n))),
    ),
    "boolean_axis": ("B T 4", lambda x: tf.reduce_sum(x, tf.range(1, tf.rank(x)))),
}


LINALG = {
    "inverse": ("B 3 3", gradient_of(lambda x: tf.linalg.inv(x + 4 * tf.eye(3)))),
    "cholesky": (
        "B 3 3",
        gradient_of(
            lambda x: tf.linalg.cholesky(x @ tf.linalg.matrix_transpose(x) + 4 * tf.eye(3))
        ),
    ),
    "solve": ("B 3 3, B 3 2", gradient_of(lambda x, y: tf.linalg.solve(x + 4 * tf.eye(3), y))),
    "triangular": ("B 3 3, B 3 T", lambda x, y: tf.linalg.triangular_solve(x + 4 * tf.eye(3), y)),
    "triangular_broadcast": (
        "3 3, B 3 2",
        lambda x, y: tf.linalg.triangular_solve(x + 4 * tf.eye(3), y),
    ),
    "qr": ("B 4 3", lambda x: (tf.linalg.qr(x), tf.linalg.qr(x, full_matrices=True))),
    "svd": ("B 4 3", lambda x: tf.linalg.svd(x)),
    "svd_unknown": ("B T 3", lambda x: tf.linalg.svd(x)),
    "eigen": ("B 3 3", lambda x: (tf.linalg.eigh(x), tf.linalg.det(x), tf.linalg.logdet(x @ x))),
    "least_squares": ("B 4 3, B 4 2", lambda x, y: tf.linalg.lstsq(x, y)),
    "diag": (
        "B 3",
        lambda x: (
            tf.linalg.diag(x),
            tf.linalg.diag(x[0]),
            tf.linalg.diag(x, k=1),
            tf.linalg.tensor_diag(x[0]),
        ),
    ),
    "diag_of_batch": ("B", lambda x: (tf.linalg.diag(x), tf.linalg.diag(x, k=-1))),
    "diag_part": (
        "B 3 4",
        lambda x: (
            tf.linalg.diag_part(x),
            tf.linalg.diag_part(x[0]),
            tf.linalg.diag_part(x, k=(-1, 1)),
        ),
    ),
    "diag_part_unknown": ("B T S", lambda x: (tf.linalg.diag_part(x), tf.linalg.trace(x))),
    "diag_part_of_matrix": ("B 3", lambda x: tf.linalg.diag_part(x)),
    "band_part": (
        "B 3 3",
        lambda x: (tf.linalg.band_part(x, 0, -1), tf.linalg.set_diag(x, x[:, 0])),
    ),
    "cross": ("B 3", lambda x: (tf.linalg.cross(x, x), tf.linalg.matvec(tf.linalg.diag(x), x))),
}

IMAGES = {
    "resize": ("B 3 4 2", gradient_of(lambda x: tf.image.resize(x, [6, 8]))),
    "resize_nearest": ("B T S 2", gradient_of(lambda x: tf.image.resize(x, [6, 8], "nearest"))),
    "resize_unknown": ("B T S 2", gradient_of(lambda x: tf.image.resize(x, 2 * tf.shape(x)[1:3]))),
    "resize_cubic": ("B 3 4 2", gradient_of(lambda x: tf.image.resize(x, [6, 8], "bicubic"))),
    "resize_area": (
        "B 4 4 2",
        lambda x: (tf.image.resize(x, [2, 2], "area"), tf.image.resize(x, [2, 2], "lanczos3")),
    ),
    "depth_to_space": (
        "B 2 4 4",
        lambda x: (tf.nn.depth_to_space(x, 2), tf.nn.space_to_depth(x, 2)),
    ),
    "depth_to_space_unknown": ("B T S 4", lambda x: tf.nn.depth_to_space(x, 2)),
    "space_to_batch": ("B 4 4 2", lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]])),
    "batch_to_space": (
        "B 2 2 1",
        lambda x: tf.space_to_batch(
            tf.batch_to_space(x, [2, 1], [[0, 0], [0, 0]]), [2, 1], [[0, 0], [0, 0]]
        ),
        EVEN,
    ),
    "patches": (
        "B 4 T 2",
        lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID"),
        EVEN,
    ),
    "crop_and_resize": (
        "B 5 5 2, B 4",
        lambda x, b: tf.image.crop_and_resize(x, b, tf.range(tf.shape(x)[0]), [3, 3]),
    ),
    "crop_boxes": (
        "B 5 5 2, T 4, int T",
        lambda x, b, n: tf.image.crop_and_resize(x, b, n * 0, [3, 3]),
    ),
    "flips": (
        "B 3 4 3",
        lambda x: (
            tf.image.flip_left_right(x),
            tf.image.rot90(x),
            tf.image.transpose(x),
            tf.image.random_flip_up_down(x),
        ),
    ),
    "colors": (
        "B 3 4 3",
        lambda x: (
            tf.image.rgb_to_hsv(x),
            tf.image.adjust_hue(x, 0.1),
            tf.image.adjust_saturation(x, 2.0),
            tf.image.adjust_contrast(x, 2.0),
            tf.image.rgb_to_grayscale(x),
        ),
    ),
    "central_crop": (
        "B 6 6 3",
        lambda x: (tf.image.central_crop(x, 0.5), tf.image.resize_with_crop_or_pad(x, 3, 9)),
    ),
    "projective": (
        "B 4 4 2",
        lambda x: tf.raw_ops.ImageProjectiveTransformV3(
            images=x,
            transforms=tf.ones([1, 8]),
            output_shape=[5, 6],
            fill_value=0.0,
            interpolation="BILINEAR",
        ),
    ),
    "sobel": ("B 4 4 2", lambda x: (tf.image.sobel_edges(x), tf.image.image_gradients(x))),
    "ssim": ("B 12 12 1", lambda x: (tf.image.psnr(x, x, 1.0), tf.image.total_variation(x))),
    "boxes": ("B 4, B", lambda x, s: tf.image.non_max_suppression(x, s, 3)),
}

SPECTRA = {
    "spectra": (
        "B T 8",
        gradient_of(lambda x: tf.math.real(tf.signal.rfft(x)) + tf.abs(tf.signal.rfft(x, [8]))),
    ),
    "spectra_back": ("B 4 5", lambda x: tf.signal.irfft2d(tf.cast(x, tf.complex64))),
    "frames_of_images": (
        "B 12",
        gradient_of(lambda x: tf.signal.overlap_and_add(tf.signal.frame(x, 4, 2), 3)),
    ),
    "rows_of_blocks": (
        "B 4 4 2",
        lambda x: tf.batch_to_space(
            tf.space_to_batch(x, [2, 3], [[1, 1], [0, 2]]), [2, 3], [[0, 1], [1, 1]]
        ),
    ),
    "crop_again": ("B 4 5 2", gradient_of(lambda x: tf.image.pad_to_bounding_box(x, 1, 2, 8, 9))),
    "repeated_columns": ("B 4", gradient_of(lambda x: tf.repeat(x, 3, axis=1))),
    "largest": ("B 4", gradient_of(lambda x: tf.nn.top_k(x, 2).values)),
    "steps_of_three": ("B", lambda x: tf.range(0, 3 * tf.shape(x)[0], 3)),
    "products": ("B 4", gradient_of(lambda x: tf.reduce_prod(x, 1))),
    "remainder_of_one": (
        "B 4, int 1",
        lambda x, n: tf.slice(x, tf.concat([n, n], 0) % [1, 2], [tf.shape(x)[0], 3]),
    ),
    "searched": ("B 3", lambda x: tf.searchsorted([0.5, 1.0], tf.reshape(x, [-1]))),
    "counts": ("int B 5", lambda x: tf.math.bincount(x, minlength=4, maxlength=4, axis=-1)),
    "unknown_windows": (
        "B 5 6 2",
        gradient_of(lambda x: tf.nn.convolution(x, tf.ones([2, 2, 2, 3]), dilations=2)),
    ),
}
