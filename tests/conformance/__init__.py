"""What `tf.distribute` promises of a strategy with one replica, held against evener.

Every check also runs under TensorFlow's own `OneDeviceStrategy`, in the long campaign, so that
the check itself is known to state what TensorFlow does.
"""
