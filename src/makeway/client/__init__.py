"""A small Kubernetes REST client.

`kubeconfig` says who we are and where the server is, `client` makes single calls, and `watch` keeps
a local copy of a resource that follows the server.
"""

from makeway.client.client import ApiError, Client, UnreachableError
from makeway.client.kubeconfig import Connection, embedded, from_kubeconfig, in_cluster
from makeway.client.resource import Resource
from makeway.client.watch import Reflector

__all__ = [
    "ApiError",
    "Client",
    "Connection",
    "Reflector",
    "Resource",
    "UnreachableError",
    "embedded",
    "from_kubeconfig",
    "in_cluster",
]
