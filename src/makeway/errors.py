"""What a person can mend: an error that says what happened, where, and what to do next."""

from __future__ import annotations


class UserError(Exception):
    """Printed without a traceback, exit code 1."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head} {self.hint}" if self.hint else head


class InvalidObject(UserError):
    """An object whose content cannot be used; `field` is its path inside the object."""

    def __init__(self, what: str, *, obj: str, field: str = "", hint: str = "") -> None:
        self.obj = obj
        self.field = field
        super().__init__(what, where=f"{obj}: {field}" if field else obj, hint=hint)
