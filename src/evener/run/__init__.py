"""Unchanged scripts on all devices.

A session changes TensorFlow and Keras for the rest of the process.
Importing this package does not import TensorFlow.
"""
