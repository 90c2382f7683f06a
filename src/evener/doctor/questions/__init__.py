"""What several rules ask of a program, one file for each noun; each is asked once and kept."""
