"""Victim sets against an exact solver."""
