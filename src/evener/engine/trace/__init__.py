"""The step that a person wrote, traced once on the global batch, with symbolic shapes."""
