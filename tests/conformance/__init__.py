"""What `tf.distribute` promises of a strategy, held against evener and MirroredStrategy.

Every check runs under both, so that the check itself is known to state what MirroredStrategy
does. Where evener differs on purpose, the check says so: it is in `differences.py`, and in
docs/distribute.md.
"""
