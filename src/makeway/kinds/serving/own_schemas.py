"""Definitions of the kinds that Kubernetes itself does not define: Kueue's, the PodGroups, Models,
Preemptions.

Written in a few words each (`text`, `whole`, `record`, …); descriptions are what `kubectl explain`
prints. Field names, enumerations and defaults are those of the systems whose manifests people
bring.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_REF = "#/components/schemas/"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_CORE = "io.k8s.api.core.v1."
LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

KUEUE = "io.x-k8s.kueue"


def text(description: str = "", **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def choice(description: str, *values: str) -> Schema:
    return text(description, enum=list(values))


def whole(description: str = "", form: str = "int32", **more: Any) -> Schema:
    return {"type": "integer", "format": form, "description": description, **more}


def flag(description: str = "") -> Schema:
    return {"type": "boolean", "description": description}


def ref(name: str, description: str = "") -> Schema:
    full = name if name.startswith("io.") else f"{_CORE}{name}"
    return {"$ref": f"{_REF}{full}", "description": description}


def quantity(description: str = "") -> Schema:
    return ref("io.k8s.apimachinery.pkg.api.resource.Quantity", description)


def time(description: str = "") -> Schema:
    return ref(f"{_META}Time", description)


def listed(
    items: Schema,
    description: str = "",
    keys: tuple[str, ...] = (),
    kind: str = "atomic",
    **more: Any,
) -> Schema:
    schema = {"type": "array", "items": items, "description": description, **more}
    if keys:
        return schema | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return schema | {"x-kubernetes-list-type": kind}


def mapped(values: Schema, description: str = "") -> Schema:
    return {"type": "object", "additionalProperties": values, "description": description}


def record(description: str, required: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    schema: Schema = {"type": "object", "description": description, "properties": fields}
    if required:
        schema["required"] = list(required)
    return schema


def anything(description: str = "") -> Schema:
    return {
        "type": "object",
        "description": description,
        "x-kubernetes-preserve-unknown-fields": True,
    }


CONDITIONS = listed(ref(f"{_META}Condition"), "What is known about the object now.", ("type",))
SELECTOR = ref(f"{_META}LabelSelector")
TEMPLATE = ref("PodTemplateSpec")


def kind_schema(
    group: str, version: str, kind: str, description: str, /, **fields: Schema
) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": {
            "apiVersion": text("The version of this representation of the object."),
            "kind": text("The kind of the object."),
            "metadata": ref(f"{_META}ObjectMeta", "Name, namespace, labels and the like."),
            **fields,
        },
        "x-kubernetes-group-version-kind": [{"group": group, "version": version, "kind": kind}],
    }


def definitions() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for version in ("v1beta1", "v1beta2"):
        for kind, schema in _kueue(version).items():
            found[f"{KUEUE}.{version}.{kind}"] = schema
    for group, prefix in (
        ("scheduling.sigs.k8s.io", "io.k8s.sigs.scheduling"),
        ("scheduling.x-k8s.io", "io.x-k8s.scheduling"),
    ):
        found[f"{prefix}.v1alpha1.PodGroup"] = _pod_group(group)
    found["org.kubeai.v1.Model"] = _model()
    found["dev.makeway.v1alpha1.Preemption"] = _preemption()
    return found


# ---- Kueue ---------------------------------------------------------------------------------------


def _kueue(version: str) -> dict[str, Schema]:
    old = version == "v1beta1"
    group = "kueue.x-k8s.io"
    return {
        "ClusterQueue": kind_schema(
            group,
            version,
            "ClusterQueue",
            "Quota of a team: what it owns, may borrow and must lend.",
            spec=_cluster_queue_spec(old),
            status=_cluster_queue_status(old),
        ),
        "Cohort": kind_schema(
            group,
            version,
            "Cohort",
            "Queues that lend each other what they do not use.",
            spec=record(
                "Where the cohort stands in the tree, and quota of its own.",
                parentName=text("The cohort above; empty for a root.", pattern=SUBDOMAIN),
                resourceGroups=listed(
                    _resource_group(), "Quota on top of the members' own.", maxItems=16
                ),
                fairSharing=_fair_sharing(),
            ),
            status=record("", fairSharing=_fair_sharing_status(old)),
        ),
        "LocalQueue": kind_schema(
            group,
            version,
            "LocalQueue",
            "The queue that people of a namespace submit to.",
            spec=record(
                "Which ClusterQueue stands behind it.",
                clusterQueue=text(
                    "The ClusterQueue; cannot be changed.", pattern=SUBDOMAIN, maxLength=253
                ),
                stopPolicy=choice(
                    "Whether workloads are admitted.", "None", "Hold", "HoldAndDrain"
                ),
                fairSharing=_fair_sharing(),
            ),
            status=_local_queue_status(old),
        ),
        "Workload": kind_schema(
            group,
            version,
            "Workload",
            "The unit that queues, runs and is evicted.",
            spec=_workload_spec(old),
            status=_workload_status(old),
        ),
        "ResourceFlavor": kind_schema(
            group,
            version,
            "ResourceFlavor",
            "A sort of node: its labels and taints.",
            spec=record(
                "Labels and taints of the nodes.",
                nodeLabels=mapped(text(), "Labels of the nodes; put into pods as node selector."),
                nodeTaints=listed(ref("Taint"), "Taints that a pod must tolerate.", maxItems=8),
                tolerations=listed(ref("Toleration"), "Tolerations put into pods.", maxItems=8),
                topologyName=text("The topology of these nodes.", pattern=SUBDOMAIN, maxLength=253),
            ),
        ),
        "WorkloadPriorityClass": kind_schema(
            group,
            version,
            "WorkloadPriorityClass",
            "A priority that orders queues and not pods.",
            value=whole("Higher goes first."),
            description=text("When to use this class."),
        )
        | {"required": ["value"]},
        "Topology": kind_schema(
            group,
            version,
            "Topology",
            "Levels of nearness, from the widest to the node.",
            spec=record(
                "The levels.",
                ("levels",),
                levels=listed(
                    record(
                        "",
                        ("nodeLabel",),
                        nodeLabel=text("The node label of this level.", maxLength=316),
                    ),
                    "Highest first.",
                    maxItems=16,
                    minItems=1,
                ),
            ),
        ),
        "AdmissionCheck": kind_schema(
            group,
            version,
            "AdmissionCheck",
            "Something outside that must agree before a start.",
            spec=record(
                "Who decides.",
                ("controllerName",),
                controllerName=text("The controller that decides."),
                parameters=record("", apiGroup=text(), kind=text(), name=text()),
                **({"retryDelayMinutes": whole("No longer used.", "int64")} if old else {}),
            ),
            status=record("", conditions=CONDITIONS),
        ),
        "ProvisioningRequestConfig": kind_schema(
            group, version, "ProvisioningRequestConfig", "Not acted upon here.", spec=anything()
        ),
        "MultiKueueConfig": kind_schema(
            group, version, "MultiKueueConfig", "Not acted upon here.", spec=anything()
        ),
        "MultiKueueCluster": kind_schema(
            group,
            version,
            "MultiKueueCluster",
            "Not acted upon here.",
            spec=anything(),
            status=anything(),
        ),
    }


def _fair_sharing() -> Schema:
    return record(
        "Its weight when shares are compared.", weight=quantity("Default 1; 0 means last.")
    )


def _fair_sharing_status(old: bool) -> Schema:
    usage = record("", consumedResources=mapped(quantity()), lastUpdate=time())
    return record(
        "",
        weightedShare=whole("Its share now.", "int64"),
        **({"admissionFairSharingStatus": usage} if old else {}),
    )


def _resource_group() -> Schema:
    resource = record(
        "",
        ("name", "nominalQuota"),
        name=text("The resource."),
        nominalQuota=quantity("What is owned."),
        borrowingLimit=quantity("What may be borrowed at most; absent: no limit."),
        lendingLimit=quantity("What others may borrow at most; absent: everything."),
    )
    flavor = record(
        "",
        ("name", "resources"),
        name=text("The ResourceFlavor.", pattern=SUBDOMAIN, maxLength=253),
        resources=listed(
            resource, "In the order of coveredResources.", ("name",), minItems=1, maxItems=64
        ),
    )
    return record(
        "Resources that are assigned from one flavor together.",
        ("coveredResources", "flavors"),
        coveredResources=listed(text(), "Resources of this group.", minItems=1, maxItems=64),
        flavors=listed(flavor, "In the order of preference.", ("name",), minItems=1, maxItems=64),
    )


def _cluster_queue_spec(old: bool) -> Schema:
    borrow = (
        ("Borrow", "MayStopSearch", "TryNextFlavor") if old else ("MayStopSearch", "TryNextFlavor")
    )
    preempt = (
        ("Preempt", "MayStopSearch", "TryNextFlavor") if old else ("MayStopSearch", "TryNextFlavor")
    )
    check = record(
        "",
        ("name",),
        name=text(),
        onFlavors=listed(text(), "Empty: all flavors.", kind="set", maxItems=64),
    )
    fields: dict[str, Schema] = {
        "resourceGroups": listed(_resource_group(), "Quota by flavor and resource.", maxItems=16),
        "queueingStrategy": choice("How the queue is ordered.", "StrictFIFO", "BestEffortFIFO"),
        "namespaceSelector": SELECTOR
        | {"description": "Which namespaces may submit; absent: none."},
        "flavorFungibility": record(
            "When to try the next flavor.",
            whenCanBorrow=choice("", *borrow),
            whenCanPreempt=choice("", *preempt),
            preference=choice("", "BorrowingOverPreemption", "PreemptionOverBorrowing"),
        ),
        "preemption": record(
            "Whom workloads of this queue may evict.",
            reclaimWithinCohort=choice(
                "To get back what was lent.", "Never", "LowerPriority", "Any"
            ),
            borrowWithinCohort=record(
                "Evict in other queues while borrowing.",
                policy=choice("", "Never", "LowerPriority"),
                maxPriorityThreshold=whole("Only victims of at most this priority."),
            ),
            withinClusterQueue=choice(
                "In the queue itself.", "Never", "LowerPriority", "LowerOrNewerEqualPriority"
            ),
        ),
        "admissionChecksStrategy": record(
            "", admissionChecks=listed(check, "", ("name",), maxItems=64)
        ),
        "stopPolicy": choice("Whether workloads are admitted.", "None", "Hold", "HoldAndDrain"),
        "fairSharing": _fair_sharing(),
        "admissionScope": record(
            "Whose turn it is among its LocalQueues.",
            admissionMode=choice(
                "By what each has used lately, or by priority and age alone.",
                "UsageBasedAdmissionFairSharing",
                "NoAdmissionFairSharing",
            ),
        ),
    }
    if old:
        fields["cohort"] = text("The cohort it belongs to.", pattern=SUBDOMAIN, maxLength=253)
        fields["admissionChecks"] = listed(text(), "Checks of every workload.", kind="set")
    else:
        fields["cohortName"] = text("The cohort it belongs to.", pattern=SUBDOMAIN, maxLength=253)
        fields["concurrentAdmissionPolicy"] = anything("Not acted upon here.")
    return record("What the queue owns and whom it may evict.", **fields)


def _usage(*, borrowed: bool) -> Schema:
    resource = record(
        "", name=text(), total=quantity(), **({"borrowed": quantity()} if borrowed else {})
    )
    return listed(
        record("", name=text(), resources=listed(resource, "", ("name",))), "By flavor.", ("name",)
    )


def _cluster_queue_status(old: bool) -> Schema:
    fields: dict[str, Schema] = {
        "conditions": CONDITIONS,
        "flavorsReservation": _usage(borrowed=True),
        "flavorsUsage": _usage(borrowed=True),
        "pendingWorkloads": whole("How many wait."),
        "reservingWorkloads": whole("How many hold quota."),
        "admittedWorkloads": whole("How many are admitted."),
        "fairSharing": _fair_sharing_status(old),
    }
    if old:
        fields["pendingWorkloadsStatus"] = anything()
    return record("What the queue uses now.", **fields)


def _local_queue_status(old: bool) -> Schema:
    share = record(
        "",
        weightedShare=whole("What it counts as having used, by its weight.", "int64"),
        admissionFairSharingStatus=record(
            "What its workloads have used, lately more than long ago.",
            consumedResources=mapped(quantity()),
            lastUpdate=time(),
        ),
    )
    fields: dict[str, Schema] = {
        "conditions": CONDITIONS,
        "pendingWorkloads": whole("How many wait."),
        "reservingWorkloads": whole("How many hold quota."),
        "admittedWorkloads": whole("How many are admitted."),
        "flavorsReservation": _usage(borrowed=False),
        "flavorUsage" if old else "flavorsUsage": _usage(borrowed=False),
        "fairSharing": share,
    }
    if old:
        fields["flavors"] = listed(anything())
    return record("What was submitted through this queue.", **fields)


def _topology_request(old: bool) -> Schema:
    fields = {
        "required": text("The level within which all pods must be."),
        "preferred": text("The level within which all pods should be."),
        "unconstrained": flag(),
        "podIndexLabel": text(),
        "subGroupIndexLabel": text(),
        "subGroupCount": whole(),
        "podSetGroupName": text(),
        "podSetSliceRequiredTopology": text(),
        "podSetSliceSize": whole(),
    }
    if not old:
        fields["podsetSliceRequiredTopologyConstraints"] = listed(anything())
    return record("How near the pods must be.", **fields)


def _workload_spec(old: bool) -> Schema:
    pod_set = record(
        "",
        ("template",),
        name=text("Default main.", pattern=LABEL, maxLength=63),
        template=TEMPLATE | {"description": "The pods."},
        count=whole("How many pods.", minimum=0),
        minCount=whole("How few are enough.", minimum=1),
        topologyRequest=_topology_request(old),
    )
    fields: dict[str, Schema] = {
        "podSets": listed(pod_set, "Pods that are alike.", ("name",), minItems=1, maxItems=18),
        "queueName": text("The LocalQueue.", pattern=SUBDOMAIN, maxLength=253),
        "priority": whole("Higher goes first."),
        "active": flag("False: evicted, and not queued."),
        "maximumExecutionTimeSeconds": whole("Evicted and deactivated after this.", minimum=1),
    }
    if old:
        fields["priorityClassName"] = text("The class that the priority was taken from.")
        fields["priorityClassSource"] = text(
            "Where that class is defined.",
            enum=["kueue.x-k8s.io/workloadpriorityclass", "scheduling.k8s.io/priorityclass", ""],
        )
    else:
        fields["priorityClassRef"] = record(
            "Where the priority was taken from.", group=text(), kind=text(), name=text()
        )
        fields["preemptionGates"] = listed(anything())
    return record("What is asked for.", **fields)


def _workload_status(old: bool) -> Schema:
    assignment = record(
        "",
        ("name",),
        name=text(),
        flavors=mapped(text()),
        resourceUsage=mapped(quantity()),
        count=whole(),
        topologyAssignment=anything(),
        delayedTopologyRequest=text(),
    )
    check = record(
        "",
        name=text(),
        state=choice("", "Pending", "Ready", "Retry", "Rejected"),
        lastTransitionTime=time(),
        message=text(),
        requeueAfterSeconds=whole(),
        retryCount=whole(),
        podSetUpdates=listed(anything()),
    )
    count = record("", name=text(), count=whole())
    executed = (
        "accumulatedPastExexcutionTimeSeconds" if old else "accumulatedPastExecutionTimeSeconds"
    )
    fields: dict[str, Schema] = {
        "conditions": CONDITIONS,
        "admission": record(
            "The quota it holds.",
            ("clusterQueue", "podSetAssignments"),
            clusterQueue=text(),
            podSetAssignments=listed(assignment, "", ("name",)),
        ),
        "requeueState": record("", count=whole(), requeueAt=time()),
        "reclaimablePods": listed(count, "", ("name",)),
        "admissionChecks": listed(check, "", ("name",)),
        "resourceRequests": listed(
            record("", name=text(), resources=mapped(quantity())), "", ("name",)
        ),
        executed: whole(),
        "schedulingStats": record(
            "",
            evictions=listed(
                record("", reason=text(), underlyingCause=text(), count=whole()),
                "",
                ("reason", "underlyingCause"),
            ),
        ),
        "nominatedClusterNames": listed(text()),
        "clusterName": text(),
        "unhealthyNodes": listed(anything()),
    }
    if not old:
        fields["preemptionGates"] = listed(anything())
    return record("How it stands.", **fields)


# ---- others --------------------------------------------------------------------------------------


def _pod_group(group: str) -> Schema:
    return kind_schema(
        group,
        "v1alpha1",
        "PodGroup",
        "Pods that start together or not at all.",
        spec=record(
            "When the gang may start.",
            minMember=whole("How many pods are needed at once."),
            minResources=mapped(quantity(), "What the gang needs at least."),
            scheduleTimeoutSeconds=whole("How long to wait for the others."),
        ),
        status=record(
            "",
            phase=text("Pending, Scheduling, Running, Finished or Failed."),
            occupiedBy=text(),
            scheduled=whole(),
            running=whole(),
            succeeded=whole(),
            failed=whole(),
            scheduleStartTime=time(),
            conditions=CONDITIONS,
        ),
    )


def _model() -> Schema:
    adapter = record(
        "", ("name", "url"), name=text(pattern="^[a-z0-9-]+$", maxLength=63), url=text()
    )
    file = record(
        "", ("path", "content"), path=text(maxLength=1024), content=text(maxLength=100000)
    )
    return kind_schema(
        "kubeai.org",
        "v1",
        "Model",
        "A model that is served by pods.",
        spec=record(
            "Which model, by which engine, in how many replicas.",
            ("url", "engine", "features"),
            url=text(
                "Where the model comes from: hf://, pvc://, ollama://, s3://, gs:// or oss://."
            ),
            engine=choice("The server.", "OLlama", "VLLM", "FasterWhisper", "Infinity"),
            features=listed(
                choice("", "TextGeneration", "TextEmbedding", "SpeechToText"), "What it can do."
            ),
            resourceProfile=text(
                "Name and count of the resources of a replica, such as nvidia-gpu-l4:1."
            ),
            cacheProfile=text(),
            image=text("Instead of the engine's own image."),
            args=listed(text(), "Added to the server's arguments."),
            env=mapped(text()),
            envFrom=listed(ref("EnvFromSource")),
            replicas=whole("How many now."),
            minReplicas=whole("Never fewer.", minimum=0),
            maxReplicas=whole("Never more.", minimum=1),
            autoscalingDisabled=flag(),
            targetRequests=whole(minimum=1),
            scaleDownDelaySeconds=whole("", "int64"),
            owner=text(),
            loadBalancing=record(
                "",
                strategy=choice("", "LeastLoad", "PrefixHash"),
                prefixHash=record(
                    "",
                    meanLoadFactor=whole(minimum=100),
                    replication=whole(),
                    prefixCharLength=whole(),
                ),
            ),
            adapters=listed(adapter, "", ("name",)),
            files=listed(file, "", ("path",), maxItems=10),
            priorityClassName=text("The priority of every pod of the model."),
        ),
        status=record(
            "",
            replicas=record("", all=whole("Pods of the model."), ready=whole("Pods that answer.")),
            cache=record("", loaded=flag()),
            conditions=CONDITIONS,
        ),
    )


def _preemption() -> Schema:
    return kind_schema(
        "makeway.dev",
        "v1alpha1",
        "Preemption",
        "Who was evicted for whom, by which rule and at what cost; while it is open, the room"
        " that is held.",
        spec=anything("For whom and why."),
        status=anything("How far it is, and what it cost."),
    )
