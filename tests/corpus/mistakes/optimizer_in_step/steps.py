import keras
import tensorflow as tf


def train_step(model, features, targets):
    optimizer = keras.optimizers.Adam(1e-3)  # finding: RUN-009
    loss_fn = keras.losses.MeanSquaredError()
    with tf.GradientTape() as tape:
        loss = loss_fn(targets, model(features, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss
