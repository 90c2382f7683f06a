"""Reasons of what is gathered: public names by the one cause that they share."""

from __future__ import annotations

BY_REASON: dict[str, str] = {
    "It compares, sorts or permutes the samples of a batch.": """
        tf.math.invert_permutation tf.math.approx_max_k
        tf.image.non_max_suppression tf.image.non_max_suppression_overlaps
        tf.image.non_max_suppression_with_scores
        keras.ops.flipud keras.ops.argpartition keras.layers.CutMix keras.layers.MixUp
        """,
    "It scans the batch: every result depends on the samples before it.": """
        tf.math.reduce_prod tf.math.is_non_decreasing tf.math.is_strictly_increasing
        keras.ops.prod keras.ops.nanprod keras.ops.correlate
        """,
    "It combines every sample with every other sample.": """
        tf.linalg.tensor_diag tf.linalg.tensor_diag_part keras.ops.diag keras.ops.diagflat
        keras.losses.Circle keras.losses.circle
        """,
    "The number of rows of its result depends on the data.": """
        tf.math.segment_max tf.math.segment_mean tf.math.segment_min tf.math.segment_prod
        tf.math.segment_sum tf.nn.collapse_repeated tf.nn.ctc_beam_search_decoder
        tf.nn.ctc_greedy_decoder keras.ops.ctc_decode tf.nn.embedding_lookup_sparse
        tf.nn.safe_embedding_lookup_sparse keras.ops.nonzero keras.ops.unique keras.ops.histogram
        keras.layers.HashedCrossing keras.layers.TextVectorization
        """,
    "It reduces the batch by an operation whose partial results cannot be combined.": """
        tf.math.reduce_euclidean_norm tf.math.zero_fraction
        """,
    "The number of squarings depends on the largest norm of a matrix in the batch.": """
        tf.linalg.expm
        """,
    "It draws numbers or classes once for the whole batch, from a stateful generator.": """
        tf.nn.fractional_avg_pool tf.nn.fractional_max_pool tf.nn.nce_loss
        tf.nn.sampled_softmax_loss
        """,
    "Its lookup table is on the host.": "keras.layers.IntegerLookup keras.layers.StringLookup",
    "Its assertion prints values of the batch.": "tf.math.confusion_matrix",
}
NOT_YET: dict[str, str] = {
    "The size of a row of its result depends on the data.": """
        tf.image.adjust_jpeg_quality tf.image.stateless_random_jpeg_quality
        """,
    "It draws random numbers sample by sample, from a stateful generator.": """
        tf.image.random_jpeg_quality tf.image.sample_distorted_bounding_box
        """,
    "Its loop runs in parts, but reads samples by index from the whole batch.": """
        keras.ops.fold
        """,
    "A condition or loop in it passes values or rows of unknown size to its gradient.": """
        tf.image.ssim_multiscale tf.image.non_max_suppression_padded
        """,
    "It reads the shape of the first image.": "keras.layers.RandomElasticTransform",
    "It gathers from a table per sample by flat indices that depend on the data.": """
        keras.layers.ContrastLimitedAdaptiveHistogramEqualization
        """,
}
"""Names that work sample by sample and are gathered all the same, by what is in the way."""

REASONS = {
    name: reason
    for table in (BY_REASON, NOT_YET)
    for reason, names in table.items()
    for name in names.split()
}
