"""The only folder, with ``_tf_private``, that may import private modules of TensorFlow and Keras.

The docstring of every function states why it is needed, and what breaks if TensorFlow changes.
"""
