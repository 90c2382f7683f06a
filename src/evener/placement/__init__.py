"""Where operations run: `evener.pin` says so for layers, models, functions and blocks."""
