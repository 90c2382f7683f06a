"""States of every tensor of a step, and what the parts compute."""
