"""Questions about rights. Whoever has the token may do everything, so the answers are short."""

from __future__ import annotations

from collections.abc import Callable

from makeway.embedded.api.bodies import parse
from makeway.embedded.api.http import Answer, Request, json_answer
from makeway.kinds.serving.columns import at
from makeway.kinds.serving.refusal import Obj

USER = {"username": "makeway:admin", "groups": ["system:masters", "system:authenticated"]}


_GROUPS = (["apis", "authorization.k8s.io"], ["apis", "authentication.k8s.io"])


async def answer_review(request: Request, accepts: Callable[[str], bool]) -> Answer | None:
    """`accepts` knows which tokens are good."""
    if request.method != "POST":
        return None
    parts = request.path.strip("/").split("/")
    if parts[:2] not in _GROUPS:
        return None
    obj = parse(request.content_type, await request.body())
    obj = obj if isinstance(obj, dict) else {}
    token = at(obj, "spec", "token")
    status = _status(parts[-1], good=isinstance(token, str) and accepts(token))
    if status is None:
        return None
    obj.setdefault("apiVersion", f"{parts[1]}/v1")
    obj.setdefault("metadata", {})
    return json_answer({**obj, "status": status}, 201)


def _status(review: str, *, good: bool) -> Obj | None:
    match review:
        case "selfsubjectaccessreviews" | "subjectaccessreviews" | "localsubjectaccessreviews":
            return {"allowed": True, "reason": "the token of this API may do everything"}
        case "selfsubjectrulesreviews":
            rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            paths = {"verbs": ["*"], "nonResourceURLs": ["*"]}
            return {"resourceRules": [rule], "nonResourceRules": [paths], "incomplete": False}
        case "selfsubjectreviews":
            return {"userInfo": USER}
        case "tokenreviews":
            return {"authenticated": True, "user": USER} if good else {"user": {}}
    return None
