"""What the parts hold of every tensor of a step, and what they compute."""
