"""The part of the Kubernetes REST API that we serve: discovery, verbs, patches, watches, tables,
subresources.
"""
