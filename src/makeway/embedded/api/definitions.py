"""Keeps the registry in step with the CustomResourceDefinitions in the store."""

from __future__ import annotations

import logging

from makeway.embedded.api.objects import Objects
from makeway.embedded.api.openapi import OpenApi
from makeway.embedded.store import Change, Entry
from makeway.kinds.serving.custom import kind_from

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"

logger = logging.getLogger(__name__)


class CustomKinds:
    def __init__(self, objects: Objects, openapi: OpenApi) -> None:
        self._objects = objects
        self._openapi = openapi
        self._mine: set[str] = set()
        for entry in objects.store.all(DEFINITIONS):
            self._serve(entry)
        # Told on commit and before the answer goes out, so a kind is served when its creation is answered.
        objects.store.listen(self._follow)

    def _follow(self, changes: list[Change]) -> None:
        for change in changes:
            if change.kind != DEFINITIONS:
                continue
            if change.after is not None:
                self._serve(change.after)
            else:
                self._forget(change.last)

    def _serve(self, entry: Entry) -> None:
        registry = self._objects.registry
        definition = entry.decode()
        spec = definition["spec"]
        if entry.name not in self._mine and registry.get(spec["group"], spec["names"]["plural"]):
            return  # built in
        try:
            registry.add(kind_from(definition))
        except (KeyError, IndexError, TypeError, ValueError):
            logger.exception("the definition %s cannot be served", entry.name)
            return
        self._mine.add(entry.name)
        self._openapi.forget()

    def _forget(self, entry: Entry) -> None:
        if entry.name not in self._mine:
            return
        self._mine.discard(entry.name)
        kind = self._objects.registry[entry.name]
        self._objects.purge(kind)
        self._objects.registry.remove(entry.name)
        self._openapi.forget()
