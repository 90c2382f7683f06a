import tensorflow as tf


class WeightedError(tf.keras.losses.Loss):
    """Costs more where the prediction is too low."""

    def __init__(self, under=1.0, over=1.0, name="weighted_error"):
        super().__init__(name=name)
        self.under = under
        self.over = over

    def call(self, y_true, y_pred):
        difference = tf.cast(y_true, y_pred.dtype) - y_pred
        weight = tf.where(difference > 0, self.under, self.over)
        return tf.reduce_mean(weight * tf.square(difference))  # finding: ENG-064
