"""Operations of TensorFlow: one file per family, with all that is known of each operation."""
