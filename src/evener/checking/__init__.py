"""Checks of partitioned steps against one device: the whole first run, or a few samples."""
