"""Questions about rights. Whoever has the token may do everything, so the answers are short."""

from __future__ import annotations

from makeway.embedded.api.bodies import parse
from makeway.embedded.api.http import Answer, Request, json_answer
from makeway.kinds.serving.refusal import Obj

USER = {"username": "makeway:admin", "groups": ["system:masters", "system:authenticated"]}


async def answer_review(request: Request) -> Answer | None:
    if request.method != "POST":
        return None
    parts = request.path.strip("/").split("/")
    if parts[:1] != ["apis"] or parts[1] not in ("authorization.k8s.io", "authentication.k8s.io"):
        return None
    obj = parse(request.content_type, await request.body())
    obj = obj if isinstance(obj, dict) else {}
    status = _status(parts[-1])
    if status is None:
        return None
    obj.setdefault("apiVersion", f"{parts[1]}/v1")
    obj.setdefault("metadata", {})
    return json_answer({**obj, "status": status}, 201)


def _status(review: str) -> Obj | None:
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
            return {"authenticated": True, "user": USER}
    return None
