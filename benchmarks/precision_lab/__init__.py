"""Measurements of the precision lab: what it finds, and what the lab itself gets right."""
