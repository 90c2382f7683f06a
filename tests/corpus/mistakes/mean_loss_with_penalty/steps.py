import tensorflow as tf


def make_replica_step(model, optimizer, decay=1e-4):
    def replica_step(features, targets):
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
            loss = tf.math.reduce_mean(losses)  # finding: DOC-214
            loss += decay * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    return replica_step
