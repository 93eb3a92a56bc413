"""SkyPilot task files: what a user wrote, and the Kubernetes objects that run it.

`task` reads the file (a key that nobody knows is an error with its path), `accelerators` turns `T4:4` into an amount and a place,
and `objects` makes the pods of `makeway launch` or the Job of `makeway jobs launch`.
"""

from makeway.kinds.skypilot.objects import Launch, cluster_objects, managed_job
from makeway.kinds.skypilot.task import Task, parse_task

__all__ = ["Launch", "Task", "cluster_objects", "managed_job", "parse_task"]
