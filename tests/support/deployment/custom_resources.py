"""Checks resources that Kubernetes itself does not know: those of the Prometheus Operator, of KEDA and of KServe.

The schemas describe what deploy/ uses of them, closed: another field is refused until somebody has looked up whether it
exists. Parts that are parts of a pod are checked as such by `kubernetes-validate`.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import kubernetes_validate

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "integer", "minimum": 0}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"}
SELECTOR: Schema = {"type": "object", "properties": {"matchLabels": LABELS}, "additionalProperties": False}


def closed(required: str = "", **properties: Schema) -> Schema:
    """Returns the schema of an object with these properties and no others. required: names of those that must be."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def several(of: Schema) -> Schema:
    """Returns the schema of a list that has at least one element."""
    return {"type": "array", "items": of, "minItems": 1}


def _resource(api_version: str, kind: str, spec: Schema) -> tuple[tuple[str, str], Schema]:
    metadata = closed("name", name=TEXT, namespace=TEXT, labels=LABELS, annotations=LABELS)
    schema = closed(
        "apiVersion kind metadata spec",
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )
    return (api_version, kind), schema


_KEY = closed("name key", name=TEXT, key=TEXT)
_POLICY = closed("type value periodSeconds", type={"enum": ["Pods", "Percent"]}, value=NUMBER, periodSeconds=NUMBER)
_RULES = closed("policies", stabilizationWindowSeconds=NUMBER, policies=several(_POLICY))
_WINDOW = closed(stabilizationWindowSeconds=NUMBER)
_POD_PART: Schema = {"type": "object"}

SCHEMAS: dict[tuple[str, str], Schema] = dict(
    [
        _resource(
            "monitoring.coreos.com/v1",
            "ServiceMonitor",
            closed(
                "selector endpoints",
                jobLabel=TEXT,
                selector=SELECTOR,
                endpoints=several(
                    closed(
                        "port",
                        port=TEXT,
                        path=TEXT,
                        interval=DURATION,
                        scrapeTimeout=DURATION,
                        scheme={"enum": ["http", "https"]},
                        tlsConfig=closed("ca", serverName=TEXT, ca=closed("secret", secret=_KEY)),
                        authorization=closed("credentials", credentials=_KEY),
                    )
                ),
            ),
        ),
        _resource(
            "monitoring.coreos.com/v1",
            "PrometheusRule",
            closed(
                "groups",
                groups=several(
                    closed(
                        "name rules",
                        name=TEXT,
                        interval=DURATION,
                        rules=several(
                            {
                                **closed(
                                    "expr",
                                    alert=TEXT,
                                    record=TEXT,
                                    expr=TEXT,
                                    labels=LABELS,
                                    annotations=LABELS,
                                    **{"for": DURATION},
                                ),
                                "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
                            }
                        ),
                    )
                ),
            ),
        ),
        _resource(
            "keda.sh/v1alpha1",
            "ScaledObject",
            closed(
                "scaleTargetRef triggers",
                scaleTargetRef=closed("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
                pollingInterval=NUMBER,
                minReplicaCount=NUMBER,
                maxReplicaCount=NUMBER,
                fallback=closed(
                    "failureThreshold replicas",
                    failureThreshold=NUMBER,
                    replicas=NUMBER,
                    behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher"]},
                ),
                advanced=closed(
                    horizontalPodAutoscalerConfig=closed(behavior=closed(scaleUp=_RULES, scaleDown=_RULES)),
                ),
                triggers=several(
                    closed(
                        "type metadata",
                        type={"const": "prometheus"},
                        metricType={"enum": ["AverageValue", "Value"]},
                        metadata=closed(
                            "serverAddress query threshold", serverAddress=TEXT, query=TEXT, threshold=TEXT
                        ),
                    )
                ),
            ),
        ),
        _resource(
            "serving.kserve.io/v1alpha1",
            "ServingRuntime",
            closed(
                "containers supportedModelFormats protocolVersions",
                annotations=LABELS,
                supportedModelFormats=several(
                    closed("name", name=TEXT, version=TEXT, autoSelect={"type": "boolean"}, priority=NUMBER)
                ),
                protocolVersions=several({"enum": ["v1", "v2", "grpc-v2"]}),
                containers=several(_POD_PART),
                volumes=several(_POD_PART),
            ),
        ),
        _resource(
            "serving.kserve.io/v1beta1",
            "InferenceService",
            closed(
                "predictor",
                predictor=closed(
                    "model",
                    minReplicas=NUMBER,
                    maxReplicas=NUMBER,
                    autoScaling=closed(
                        "metrics",
                        metrics=several(
                            closed(
                                "type external",
                                type={"const": "External"},
                                external=closed(
                                    "metric target",
                                    metric=closed(
                                        "backend serverAddress query",
                                        backend={"const": "prometheus"},
                                        serverAddress=TEXT,
                                        query=TEXT,
                                    ),
                                    target=closed("type value", type={"const": "Value"}, value=TEXT),
                                ),
                            )
                        ),
                        behavior=closed(scaleUp=_WINDOW, scaleDown=_WINDOW),
                    ),
                    serviceAccountName=TEXT,
                    automountServiceAccountToken={"type": "boolean"},
                    enableServiceLinks={"type": "boolean"},
                    terminationGracePeriodSeconds=NUMBER,
                    securityContext=_POD_PART,
                    topologySpreadConstraints=several(_POD_PART),
                    volumes=several(_POD_PART),
                    model=closed(
                        "modelFormat runtime",
                        modelFormat=closed("name", name=TEXT, version=TEXT),
                        runtime=TEXT,
                        protocolVersion={"enum": ["v1", "v2", "grpc-v2"]},
                        storageUri=TEXT,
                        env=several(_POD_PART),
                        args=several(TEXT),
                        resources=_POD_PART,
                    ),
                ),
            ),
        ),
    ]
)


def is_custom(resource: Schema) -> bool:
    """Returns whether a resource belongs to one of these programs."""
    return (resource["apiVersion"], resource["kind"]) in SCHEMAS


def check_custom(resource: Schema) -> None:
    """Checks a resource. Raises jsonschema_rs.ValidationError, or that of kubernetes_validate for parts of a pod."""
    jsonschema_rs.validate(SCHEMAS[resource["apiVersion"], resource["kind"]], resource)
    spec = resource["spec"]
    if resource["kind"] == "ServingRuntime":
        _check_pod({"containers": spec["containers"], "volumes": spec.get("volumes", [])})
    if resource["kind"] == "InferenceService":
        model = spec["predictor"]["model"]
        pod = {name: part for name, part in spec["predictor"].items() if name not in _OF_KSERVE}
        container = {name: model[name] for name in ("env", "args", "resources") if name in model}
        _check_pod({**pod, "containers": [{"name": "kserve-container", "image": "any", **container}]})


_OF_KSERVE = {"model", "minReplicas", "maxReplicas", "autoScaling"}


def _check_pod(spec: Schema) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": spec}
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
