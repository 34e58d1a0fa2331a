"""What a broker does: rules that several handlers share. Start reading at ``intake.py``."""
