"""Tokens: the one of the home, and those that `kubectl create token` asks for.

A service account's token is a JWT, signed with the home's token, that says whose it is and until when. There is one right here,
everything, and a token gives it until it expires or the home's token changes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from makeway.control.clock import timestamp
from makeway.kinds.serving.refusal import Cause, Obj, invalid_value

SHORTEST_S, USUAL_S, LONGEST_S = 600, 3600, 1 << 32
ISSUER = "https://kubernetes.default.svc.cluster.local"


class Tokens:
    def __init__(self, token: str) -> None:
        self._own = f"Bearer {token}".encode()
        self._key = hashlib.sha256(f"service accounts {token}".encode()).digest()

    def accepts(self, authorization: bytes, now: float) -> bool:
        if hmac.compare_digest(authorization, self._own):
            return True
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and self._until(token.strip()) > now

    def _until(self, token: bytes) -> float:
        """When a signed token expires; 0 for anything else."""
        signed, _, signature = token.rpartition(b".")
        if not signed or not hmac.compare_digest(_text(self._sign(signed)), signature):
            return 0.0
        try:
            claims = msgspec.json.decode(_bytes(signed.partition(b".")[2]), type=dict[str, object])
            return float(str(claims["exp"]))
        except (binascii.Error, msgspec.MsgspecError, KeyError, ValueError):
            return 0.0

    def _sign(self, signed: bytes) -> bytes:
        return hmac.new(self._key, signed, hashlib.sha256).digest()

    def issue(self, account: Obj, request: Obj, now: float) -> Obj:
        """The TokenRequest with the token in its status."""
        spec = request.get("spec") or {}
        lasts = int(spec.get("expirationSeconds") or USUAL_S)
        metadata = account["metadata"]
        claims = {
            "aud": spec.get("audiences") or [ISSUER],
            "exp": int(now) + lasts,
            "iat": int(now),
            "iss": ISSUER,
            "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
        }
        head = _text(b'{"alg":"HS256","typ":"JWT"}')
        signed = head + b"." + _text(msgspec.json.encode(claims))
        token = signed + b"." + _text(self._sign(signed))
        status = {"token": token.decode(), "expirationTimestamp": timestamp(now + lasts)}
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "spec": {"audiences": claims["aud"], "expirationSeconds": lasts},
            "status": status,
        }


def request_causes(request: Obj) -> list[Cause]:
    lasts = (request.get("spec") or {}).get("expirationSeconds")
    field = "spec.expirationSeconds"
    if isinstance(lasts, int) and lasts < SHORTEST_S:
        return [invalid_value(field, lasts, "may not specify a duration less than 10 minutes")]
    if isinstance(lasts, int) and lasts > LONGEST_S:
        return [invalid_value(field, lasts, "may not specify a duration larger than 2^32 seconds")]
    return []


def _text(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def _bytes(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
