"""Partitioning of every public layer, loss, metric and operation of TensorFlow and Keras."""
