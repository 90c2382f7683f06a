"""What a partitioned step keeps in the memory of every device, and when."""
