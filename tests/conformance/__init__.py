"""The contract of `tf.distribute` for a strategy with one replica, checked for evener.

Every check also runs under TensorFlow's own `OneDeviceStrategy`, in the long campaign, so that
the check itself is known to state what TensorFlow does.
"""
