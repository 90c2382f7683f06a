"""Text tables: what the stages of evener know, for people to read."""
