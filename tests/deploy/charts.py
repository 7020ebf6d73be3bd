"""The chart of deploy/kubernetes as rendered by Helm's own code, or a skip that says what is missing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "kubernetes" / "fedbnsl"
Values = dict[str, Any]
Resource = dict[str, Any]

COORDINATOR: Values = {"coordinator": {"enabled": True}}
SITE: Values = {"site": {"enabled": True, "name": "north", "coordinator": {"cidrs": ["203.0.113.7/32"]}}}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
_WATCHED = {"enabled": True}
_ALL_OF_METRICS = {
    "enabled": True,
    "serviceMonitor": {"enabled": True, "serverName": "hub.example.org", "labels": {"release": "prometheus"}},
    "rules": {"enabled": True, "labels": {"release": "prometheus"}},
}
_KEPT = {"disruptionBudget": {"enabled": True}, "backup": {"enabled": True, "existingClaim": "backups"}}
EVERYTHING: Values = {
    "imagePullSecrets": [{"name": "registry"}],
    "coordinator": {
        "enabled": True,
        "passphraseSecret": "coordinator-passphrase",
        "metrics": _ALL_OF_METRICS,
        **_KEPT,
        "web": _WATCHED,
        "extraArgs": ["--at-once=4"],
        "runs": {"storageClass": "fast"},
        "service": {"annotations": {"a": "b"}, "loadBalancerSourceRanges": ["203.0.113.0/24"]},
        "networkPolicy": {"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}], "metricsFrom": [MONITORING]},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
    "site": {
        "enabled": True,
        "name": "north",
        "identitySecret": "north-identity",
        "passphraseSecret": "north-passphrase",
        "table": {"secret": "north-table"},
        "metrics": _ALL_OF_METRICS,
        **_KEPT,
        "web": _WATCHED,
        "folder": {"storageClass": "fast"},
        "state": {"storageClass": "elsewhere"},
        "coordinator": {"cidrs": ["203.0.113.7/32"]},
        "networkPolicy": {
            "metricsFrom": [MONITORING],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.5/32"}}], "ports": [{"port": 5432}]}],
        },
    },
}


def rendered(values: Values) -> list[Resource]:
    """The resources that Helm would send to a cluster."""
    helm = pytest.importorskip("helm_python", reason="needs helm-python-sdk, which has no wheel for this machine")
    with helm.Chart.load(str(CHART)) as chart:
        manifests = chart.render(values, name="demo", namespace="here")
    texts = [text for name, text in sorted(manifests.items()) if name.endswith(".yaml")]
    return [resource for text in texts for resource in yaml.safe_load_all(text) if resource is not None]


def of_kind(resources: list[Resource], kind: str, role: str | None = None) -> list[Resource]:
    return [
        resource
        for resource in resources
        if resource["kind"] == kind and role in (None, resource["metadata"]["labels"]["app.kubernetes.io/component"])
    ]


def pods(resources: list[Resource]) -> Iterator[tuple[dict[str, str], Resource]]:
    """Labels and specification of each pod, also of those that make a backup."""
    jobs = [job["spec"]["jobTemplate"] for job in of_kind(resources, "CronJob")]
    for workload in (*of_kind(resources, "StatefulSet"), *jobs):
        template = workload["spec"]["template"]
        yield template["metadata"]["labels"], template["spec"]


def containers(resources: list[Resource]) -> list[Resource]:
    """All of them, also those that only prepare something."""
    return [each for _, pod in pods(resources) for each in (*pod.get("initContainers", ()), *pod["containers"])]
