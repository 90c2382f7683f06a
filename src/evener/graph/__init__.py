"""The traced step as plain data: nodes, tensors, and sizes as polynomials of the batch size."""
