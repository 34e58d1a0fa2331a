"""Ready-made Spark jobs: each is a function here, and a command of ``tern pipeline`` (U4)."""
