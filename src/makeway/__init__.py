"""makeway: which AI workloads run now, where, and who steps aside, and why."""

__version__ = "0.1.0"
