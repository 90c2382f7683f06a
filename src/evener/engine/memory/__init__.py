"""Memory of every device over a partitioned step."""
