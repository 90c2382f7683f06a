"""Calls of ``tf.signal``."""

from __future__ import annotations

import tensorflow as tf

from multi_device.public_names.recipe import B, Table, call, complex64, each
from unit.graph.ops.op_case import f32, positive

s = tf.signal
WAVE = f32(B, 16)
SPECTRUM = f32(B, 5, 9, values=positive)
REAL_3D, COMPLEX_3D = f32(B, 4, 6, 8), complex64(B, 4, 6, 8)

TABLE: Table = {
    **each(s, "dct idct rfft", WAVE),
    **each(s, "fft ifft irfft", complex64(B, 8)),
    **each(s, "fft2d fft3d ifft2d ifft3d irfft2d", COMPLEX_3D),
    **each(s, "irfft3d", COMPLEX_3D, gradient=False),
    **each(s, "rfft2d", REAL_3D),
    **each(s, "rfft3d", REAL_3D, gradient=False),
    "fftshift": call(lambda x: s.fftshift(x, axes=1), WAVE),
    "ifftshift": call(lambda x: s.ifftshift(x, axes=1), WAVE),
    "frame": call(lambda x: s.frame(x, 4, 2), WAVE),
    "stft": call(lambda x: s.stft(x, 8, 4), WAVE),
    "inverse_stft": call(lambda x: s.inverse_stft(x, 16, 8), complex64(B, 5, 9)),
    "mdct": call(lambda x: s.mdct(x, 8), WAVE, tolerance=1e-4),
    "inverse_mdct": call(s.inverse_mdct, f32(B, 3, 8), tolerance=1e-4),
    "mfccs_from_log_mel_spectrograms": call(s.mfccs_from_log_mel_spectrograms, SPECTRUM),
    "overlap_and_add": call(lambda x: s.overlap_and_add(x, 3), SPECTRUM),
    "linear_to_mel_weight_matrix": call(
        lambda x: tf.tensordot(x, s.linear_to_mel_weight_matrix(4, 9, 8000), 1), SPECTRUM
    ),
}
_WINDOW = "makes a window of numbers alone"
NOT_CALLED = (
    dict.fromkeys("fftnd ifftnd rfftnd irfftnd".split(), "has a kernel for XLA alone")
    | dict.fromkeys(
        """
        hamming_window hann_window kaiser_bessel_derived_window kaiser_window vorbis_window
        """.split(),
        _WINDOW,
    )
    | {"inverse_stft_window_fn": "returns a function that creates a window"}
)
