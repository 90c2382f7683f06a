"""The only folder, beside ``_tf_private``, that may import TensorFlow's private modules.

Every function says why it is needed and what breaks if TensorFlow changes it.
"""
