"""What only several devices in one process can show."""
