"""What others write a Spark program for: each a function here, and a command of ``tern pipeline`` (U4)."""
