"""The rules, one file each; ``RULE`` in it is found by itself. The page has the code's name."""
