# machine: 2 GPUs
"""A program for TensorFlow 1: placeholders, a session, two towers pinned by hand."""

import numpy as np
import tensorflow as tf

x = tf.placeholder(tf.float32, [None, 8])  # finding: DOC-004
y = tf.placeholder(tf.float32, [None, 1])
losses = []
for gpu in range(2):
    with tf.device("/gpu:%d" % gpu):
        with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
            w = tf.get_variable("w", [8, 1])
            losses.append(tf.reduce_mean(tf.square(tf.matmul(x, w) - y)))
loss = tf.add_n(losses) / 2.0
train = tf.train.AdamOptimizer(1e-3).minimize(loss)

config = tf.ConfigProto(allow_soft_placement=True)
with tf.Session(config=config) as session:
    session.run(tf.global_variables_initializer())
    for step in range(100):
        features = np.random.rand(32, 8)
        _, value = session.run([train, loss], {x: features, y: features[:, :1]})
        if step % 10 == 0:
            print(step, value)
