"""KubeAI Models: the rules of their definition."""

from __future__ import annotations

from makeway.kinds.serving.kind import Rules
from makeway.kinds.serving.names import metadata_causes, subdomain_problems
from makeway.kinds.serving.refusal import Cause, Obj, bare_invalid
from makeway.kinds.serving.structure import structural_causes

_SCHEMES = ("hf://", "pvc://", "ollama://", "s3://", "gs://", "oss://")
_CACHED_ONLY = ("gs://", "oss://")


class ModelRules(Rules):
    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("minReplicas", 0)
        spec.setdefault("targetRequests", 100)
        spec.setdefault("scaleDownDelaySeconds", 30)
        balancing = spec.setdefault("loadBalancing", {})
        balancing.setdefault("strategy", "LeastLoad")
        hashing = balancing.setdefault("prefixHash", {})
        hashing.setdefault("meanLoadFactor", 125)
        hashing.setdefault("replication", 256)
        hashing.setdefault("prefixCharLength", 100)

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems) + structural_causes(
            "org.kubeai.v1.Model", obj
        )
        return causes or self._rules(obj)

    def _rules(self, obj: Obj) -> list[Cause]:
        spec = obj["spec"]
        url = spec.get("url") or ""
        causes: list[Cause] = []
        if not url.startswith(_SCHEMES):
            why = (
                'url must start with "hf://", "pvc://", "ollama://", "s3://", "gs://", or'
                ' "oss://" and not be empty.'
            )
            causes.append(bare_invalid("spec.url", why))
        for scheme in _CACHED_ONLY:
            if url.startswith(scheme) and not spec.get("cacheProfile"):
                why = f'urls of format "{scheme}..." only supported when using a cacheProfile'
                causes.append(bare_invalid("spec", why))
        most = spec.get("maxReplicas")
        if most is not None and int(spec.get("minReplicas") or 0) > int(most):
            causes.append(
                bare_invalid("spec", "minReplicas should be less than or equal to maxReplicas.")
            )
        if spec.get("adapters") and spec.get("engine") != "VLLM":
            causes.append(bare_invalid("spec", "adapters only supported with VLLM engine."))
        if len(obj["metadata"].get("name", "")) > 40:
            causes.append(bare_invalid("<nil>", "name must not exceed 40 characters."))
        return causes

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        before, after = old["spec"], new["spec"]
        causes: list[Cause] = []
        if before.get("cacheProfile") != after.get("cacheProfile"):
            causes.append(bare_invalid("spec", "cacheProfile is immutable."))
        elif before.get("cacheProfile") and before.get("url") != after.get("url"):
            causes.append(bare_invalid("spec", "url is immutable when using cacheProfile."))
        return causes
