"""What the Helm chart asks of a cluster, judged by what Kubernetes accepts and by what a hospital may rely on."""

import ipaddress
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedbnsl
from deploy.charts import CHART, COORDINATOR, EVERYTHING, SITE, containers, of_kind, pods, rendered
from deploy.test_alerts_and_dashboard import ALERTS
from docs.test_commands_in_pages import unknown
from fedbnsl_server.observe.prometheus import MetricsPort
from federation_folder import make_federation
from free_port import free_port

helm = pytest.importorskip("helm_python", reason="needs helm-python-sdk, which has no wheel for this machine")

SETS = {"coordinator": COORDINATOR, "site": SITE, "everything": EVERYTHING}
each_set = pytest.mark.parametrize("values", SETS.values(), ids=SETS)
OLDEST, NEWEST = "1.27", "1.37"


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    found = helm.lint(str(CHART))
    assert found["errors"] == []
    assert [message for message in found["messages"] if message["severity"] > 1] == []


def test_the_chart_installs_the_version_of_this_source() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == fedbnsl.__version__


def test_nothing_is_installed_by_itself_and_each_half_without_the_other() -> None:
    assert rendered({}) == []
    for role, values in (("coordinator", COORDINATOR), ("site", SITE)):
        roles = {each["metadata"]["labels"]["app.kubernetes.io/component"] for each in rendered(values)}
        assert roles == {role}


@each_set
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_knows_every_field_of_every_resource(values, version) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for resource in rendered(values):
        if not resource["apiVersion"].startswith("monitoring.coreos.com/"):  # of the Prometheus operator
            kubernetes_validate.validate(resource, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_would_be_found() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    [workload] = of_kind(rendered(SITE), "StatefulSet")
    workload["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(workload, NEWEST, strict=True)


# ---- what a container may do ----------------------------------------------------------------------------------------


@each_set
def test_no_container_is_root_writes_its_root_or_gains_a_right(values) -> None:
    found = containers(rendered(values))
    assert found
    for container in found:
        may = container["securityContext"]
        assert may["runAsNonRoot"] is True
        assert may["runAsUser"] > 0 < may["runAsGroup"]
        assert (may["readOnlyRootFilesystem"], may["allowPrivilegeEscalation"], may["privileged"]) == (
            True,
            False,
            False,
        )
        assert may["capabilities"] == {"drop": ["ALL"]}
        assert may["seccompProfile"] == {"type": "RuntimeDefault"}
        assert set(container["resources"]["limits"]) == set(container["resources"]["requests"]) == {"cpu", "memory"}


@each_set
def test_a_pod_shares_nothing_with_its_node_and_has_no_key_to_the_cluster(values) -> None:
    for account in of_kind(rendered(values), "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for _, pod in pods(rendered(values)):
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] != "default"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        assert pod["terminationGracePeriodSeconds"] >= 30


@each_set
def test_images_have_a_version_and_the_schema_refuses_latest(values) -> None:
    assert {container["image"].rpartition(":")[2] for container in containers(rendered(values))} == {
        fedbnsl.__version__
    }
    for half in values:
        if half != "imagePullSecrets":
            with pytest.raises(helm.HelmError):
                rendered({**values, half: {**values[half], "image": {"tag": "latest"}}})


def test_a_digest_wins_over_the_tag() -> None:
    digest = "sha256:" + "ab" * 32
    values = {"coordinator": {"enabled": True, "image": {"digest": digest, "tag": "1", "repository": "hub/c"}}}
    assert {container["image"] for container in containers(rendered(values))} == {f"hub/c@{digest}"}


# ---- secrets and volumes --------------------------------------------------------------------------------------------


@each_set
def test_secrets_are_files_that_cannot_be_written_and_never_in_the_environment_or_the_chart(values) -> None:
    resources = rendered(values)
    assert of_kind(resources, "Secret") == []
    for _, pod in pods(resources):
        secret = {volume["name"] for volume in pod["volumes"] if "secret" in volume}
        for volume in pod["volumes"]:
            assert "secret" not in volume or volume["secret"]["defaultMode"] == 0o440
        for container in pod["containers"]:
            assert {entry["name"]: entry.get("value") for entry in container.get("env", ())}.items() <= {
                ("XDG_STATE_HOME", "/state")
            }
            assert "envFrom" not in container
            mounted = {mount["name"]: mount for mount in container["volumeMounts"]}
            assert secret <= set(mounted)
            assert all(mounted[name]["readOnly"] is True for name in secret)


def test_the_coordinator_gets_no_key_of_the_authority() -> None:
    [(_, pod)] = pods(rendered(COORDINATOR))
    [federation] = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "federation"]
    paths = {item["path"] for item in federation["items"]}
    assert paths == {"ca.pem", "server.pem", "federation.toml", "enrolment.json"}


def test_ledger_and_note_are_on_volumes_of_their_own_that_outlive_the_release() -> None:
    [workload] = of_kind(rendered(SITE), "StatefulSet")
    claims = {claim["metadata"]["name"]: claim["spec"] for claim in workload["spec"]["volumeClaimTemplates"]}
    [container] = workload["spec"]["template"]["spec"]["containers"]
    at = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {at["/site"], at["/state"]} == set(claims)
    assert len(claims) == 2
    assert all(claim["accessModes"] == ["ReadWriteOnce"] for claim in claims.values())
    assert workload["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


@each_set
def test_every_mount_has_a_volume_and_every_volume_is_mounted(values) -> None:
    for workload in of_kind(rendered(values), "StatefulSet"):
        pod = workload["spec"]["template"]["spec"]
        there = [volume["name"] for volume in pod["volumes"]]
        there += [claim["metadata"]["name"] for claim in workload["spec"]["volumeClaimTemplates"]]
        used = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert sorted(there) == sorted(used)


@each_set
def test_there_is_one_pod_for_a_folder_and_no_value_that_makes_it_two(values) -> None:
    resources = rendered(values)
    assert of_kind(resources, "Deployment") == of_kind(resources, "HorizontalPodAutoscaler") == []
    assert {workload["spec"]["replicas"] for workload in of_kind(resources, "StatefulSet")} == {1}
    half = next(name for name in values if name != "imagePullSecrets")
    with pytest.raises(helm.HelmError, match="replicas"):
        rendered({**values, half: {**values[half], "replicas": 2}})


# ---- who reaches whom -----------------------------------------------------------------------------------------------


def selects(selector: dict[str, Any] | None, labels: dict[str, str]) -> bool:
    return selector is not None and selector.get("matchLabels", {}).items() <= labels.items()


def is_peer(peer: dict[str, Any], *, address: str = "", pod: Any = None, namespace: str = "here") -> bool:
    """Whether a rule means this address, or this pod of this namespace."""
    if "ipBlock" in peer:
        return bool(address) and ipaddress.ip_address(address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
    if pod is None:
        return False
    named = {"kubernetes.io/metadata.name": namespace}
    inside = selects(peer["namespaceSelector"], named) if "namespaceSelector" in peer else namespace == "here"
    return inside and ("podSelector" not in peer or selects(peer["podSelector"], pod))


def passes(policies: list[Any], of: dict[str, str], way: str, port: int, *, protocol: str = "TCP", **peer: Any) -> bool:
    """Whether Kubernetes lets a connection pass: if no policy selects the pod, or a rule of one that does fits."""
    chosen = [
        policy["spec"]
        for policy in policies
        if selects(policy["spec"]["podSelector"], of) and way.capitalize() in policy["spec"]["policyTypes"]
    ]
    rules = [rule for spec in chosen for rule in spec.get(way) or ()]
    side = "from" if way == "ingress" else "to"
    return not chosen or any(
        any(entry["port"] == port and entry.get("protocol", "TCP") == protocol for entry in rule["ports"])
        and (side not in rule or any(is_peer(each, **peer) for each in rule[side]))
        for rule in rules
    )


def test_an_agent_reaches_its_coordinator_and_the_names_and_nobody_else() -> None:
    resources = rendered(SITE)
    policies, [(labels, _)] = of_kind(resources, "NetworkPolicy"), list(pods(resources))
    dns, other = {"k8s-app": "kube-dns"}, {"app": "other"}
    assert passes(policies, labels, "egress", 50051, address="203.0.113.7")
    assert passes(policies, labels, "egress", 53, protocol="UDP", pod=dns, namespace="kube-system")
    for port, peer in (
        (443, {"address": "203.0.113.7"}),
        (50051, {"address": "203.0.113.8"}),
        (50051, {"pod": other}),
        (53, {"address": "203.0.113.7"}),
        (53, {"pod": dns, "namespace": "elsewhere"}),
        (53, {"pod": other, "namespace": "kube-system"}),
    ):
        assert not passes(policies, labels, "egress", port, **peer), (port, peer)


@each_set
def test_nobody_dials_in_to_a_site_but_monitoring_where_the_values_say_so(values) -> None:
    resources = rendered(values)
    policies = of_kind(resources, "NetworkPolicy")
    prometheus = {"app": "prometheus"}
    for labels, _ in pods(resources):
        if labels["app.kubernetes.io/component"] != "site":
            continue
        watched = values is EVERYTHING
        assert passes(policies, labels, "ingress", 9101, pod=prometheus, namespace="monitoring") is watched
        for port in (22, 80, 8444, 9101, 50051):
            assert not passes(policies, labels, "ingress", port, address="198.51.100.1")
            assert not passes(policies, labels, "ingress", port, pod=prometheus, namespace="elsewhere")


def test_a_coordinator_is_called_on_its_port_and_dials_nobody() -> None:
    resources = rendered(COORDINATOR)
    policies, [(labels, _)] = of_kind(resources, "NetworkPolicy"), list(pods(resources))
    assert passes(policies, labels, "ingress", 50051, address="198.51.100.1")
    for port in (9100, 8443, 22):
        assert not passes(policies, labels, "ingress", port, address="198.51.100.1")
    for port in (53, 443, 50051):
        assert not passes(policies, labels, "egress", port, address="198.51.100.1")


def test_a_coordinator_is_called_by_those_alone_whom_the_values_name() -> None:
    resources = rendered(EVERYTHING)
    policies = of_kind(resources, "NetworkPolicy")
    [labels] = [labels for labels, _ in pods(resources) if labels["app.kubernetes.io/component"] == "coordinator"]
    assert passes(policies, labels, "ingress", 50051, address="203.0.113.9")
    assert not passes(policies, labels, "ingress", 50051, address="198.51.100.1")
    assert passes(policies, labels, "ingress", 9100, pod={}, namespace="monitoring")
    assert not passes(policies, labels, "ingress", 9100, pod={}, namespace="here")
    assert not passes(policies, labels, "ingress", 8443, pod={}, namespace="monitoring")


def test_an_agent_beside_its_coordinator_may_call_that_pod() -> None:
    resources = rendered(EVERYTHING)
    policies = of_kind(resources, "NetworkPolicy")
    by_role = {labels["app.kubernetes.io/component"]: labels for labels, _ in pods(resources)}
    assert passes(policies, by_role["site"], "egress", 50051, pod=by_role["coordinator"])
    assert not passes(policies, by_role["site"], "egress", 50051, pod=by_role["coordinator"], namespace="elsewhere")


def test_an_agent_that_may_call_anybody_is_not_rendered() -> None:
    with pytest.raises(helm.HelmError, match=r"site\.coordinator\.cidrs"):
        rendered({"site": {"enabled": True, "name": "north"}})


@each_set
def test_services_lead_to_ports_that_are_there_and_metrics_never_through_a_load_balancer(values) -> None:
    resources = rendered(values)
    by_role = {labels["app.kubernetes.io/component"]: (labels, pod) for labels, pod in pods(resources)}
    for service in of_kind(resources, "Service"):
        labels, pod = by_role[service["metadata"]["labels"]["app.kubernetes.io/component"]]
        assert service["spec"]["selector"].items() <= labels.items()
        names = {port["name"] for container in pod["containers"] for port in container.get("ports", ())}
        led_to = {port["targetPort"] for port in service["spec"].get("ports", ())}
        assert led_to <= names
        assert service["spec"].get("clusterIP") == "None" or led_to == {"federation"}
    for workload in of_kind(resources, "StatefulSet"):
        assert workload["spec"]["serviceName"] in {each["metadata"]["name"] for each in of_kind(resources, "Service")}


# ---- what runs in it ------------------------------------------------------------------------------------------------


@each_set
def test_the_pods_call_commands_with_options_that_exist(values) -> None:
    for _, pod in pods(rendered(values)):
        for container in pod["containers"]:
            kinds = [f"{kind}Probe" for kind in ("startup", "readiness", "liveness")]
            probes = [container[kind]["exec"]["command"] for kind in kinds if kind in container]
            lines = [["fedbnsl", *container["args"]], *(probe for probe in probes if probe[0] == "fedbnsl")]
            assert [line for line in lines if unknown(" ".join(line))] == []


def test_a_site_is_started_again_for_its_own_faults_only() -> None:
    [(_, pod)] = pods(rendered(SITE))
    [container] = pod["containers"]
    asked = {kind: container[f"{kind}Probe"]["exec"]["command"][-1] for kind in ("startup", "liveness", "readiness")}
    assert asked["startup"] == asked["liveness"] == "fedbnsl_agent_up 1.0"
    assert asked["readiness"] == "fedbnsl_agent_coordinator_reachable 1.0"


def test_a_pod_in_maintenance_runs_no_agent_and_keeps_its_volumes() -> None:
    [(_, pod)] = pods(rendered({"site": {**SITE["site"], "maintenance": True}}))
    [container] = pod["containers"]
    assert "sleep infinity" in container["command"][-1]
    assert not {"args", "livenessProbe", "readinessProbe", "startupProbe"} & set(container)
    assert {"/site", "/state"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


# ---- what is there only if it is asked for --------------------------------------------------------------------------

OPTIONAL = {"PodDisruptionBudget", "ServiceMonitor", "PrometheusRule", "CronJob"}


@pytest.mark.parametrize("values", [COORDINATOR, SITE], ids=["coordinator", "site"])
def test_by_default_there_is_no_budget_of_disruptions_no_monitor_no_rule_and_no_backup(values) -> None:
    assert OPTIONAL & {resource["kind"] for resource in rendered(values)} == set()


def test_each_half_has_all_of_them_if_they_are_asked_for() -> None:
    found = sorted(resource["kind"] for resource in rendered(EVERYTHING) if resource["kind"] in OPTIONAL)
    assert found == sorted([*OPTIONAL, *OPTIONAL])


def test_the_alerts_of_both_halves_are_those_of_the_file_for_prometheus() -> None:
    resources = rendered(EVERYTHING)
    groups = [
        rule["spec"]["groups"]
        for role in ("coordinator", "site")
        for rule in of_kind(resources, "PrometheusRule", role)
    ]
    assert [group for of_half in groups for group in of_half] == yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    assert [len(of_half) for of_half in groups] == [1, 1]


def test_prometheus_asks_over_tls_with_the_token_under_the_name_that_alerts_have() -> None:
    resources = rendered(EVERYTHING)
    for role, job, ca in (
        ("coordinator", "fedbnsl-coordinator", "fedbnsl-federation"),
        ("site", "fedbnsl-agent", None),
    ):
        [monitor] = of_kind(resources, "ServiceMonitor", role)
        [endpoint] = monitor["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        assert endpoint["authorization"] == {"credentials": {"name": "fedbnsl-metrics-token", "key": "token"}}
        assert endpoint["tlsConfig"].get("ca", {}).get("secret", {}).get("name") == ca
        assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": job}]
        selected = [
            service
            for service in of_kind(resources, "Service")
            if selects(monitor["spec"]["selector"], service["metadata"]["labels"])
            and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        ]
        assert len(selected) == 1, "each pod is asked once"
        assert f'job="{job}"' in ALERTS.read_text("utf-8")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backup": {"enabled": True}}, r"site\.backup\.existingClaim"),
        ({"metrics": {"serviceMonitor": {"enabled": True, "serverName": "a"}}}, r"site\.metrics\.enabled"),
        ({"metrics": {"enabled": True, "serviceMonitor": {"enabled": True}}}, r"serverName"),
    ],
)
def test_what_lacks_something_is_not_rendered(given: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError, match=said):
        rendered({"site": {**SITE["site"], **given}})


def test_a_backup_is_made_beside_the_pod_from_its_own_volumes_and_never_of_the_state() -> None:
    resources = rendered(EVERYTHING)
    workloads = {each["metadata"]["name"]: each for each in of_kind(resources, "StatefulSet")}
    for job in of_kind(resources, "CronJob"):
        workload = workloads[job["metadata"]["name"].removesuffix("-backup")]
        spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        [near] = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert selects(near["labelSelector"], workload["spec"]["template"]["metadata"]["labels"])
        claims = {each["metadata"]["name"] for each in workload["spec"]["volumeClaimTemplates"]}
        named = {f"{claim}-{workload['metadata']['name']}-0" for claim in claims} | {"backups"}
        assert {volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]} == named
        [container] = spec["containers"]
        assert container["args"][2] in ("/runs", "/site")
        assert container["args"][3:] == ["--out=/backups", "--keep=14"]


def test_nobody_calls_a_pod_that_makes_a_backup_and_it_calls_nobody() -> None:
    resources = rendered(EVERYTHING)
    policies = of_kind(resources, "NetworkPolicy")
    of_backups = [labels for labels, _ in pods(resources) if labels["app.kubernetes.io/component"].endswith("-backup")]
    assert len(of_backups) == 2
    for labels in of_backups:
        assert not passes(policies, labels, "egress", 50051, address="203.0.113.7")
        assert not passes(policies, labels, "ingress", 9101, pod={}, namespace="monitoring")
        assert not [
            each for each in of_kind(resources, "Service") if selects({"matchLabels": each["spec"]["selector"]}, labels)
        ]


def leaves(values: dict[str, Any], *above: str) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, *above, name)
        else:
            yield (*above, name)


def test_every_value_is_used_and_every_mistyped_one_is_refused() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    templates = "".join(file.read_text(encoding="utf-8") for file in (CHART / "templates").iterdir())
    whole = {"resources", "podLabels"}  # taken over with all that is in them
    unused = [path for path in leaves(values) if not whole & set(path) and not re.search(rf"\.{path[-1]}\b", templates)]
    assert unused == []
    for path in leaves(values):
        if whole & set(path):
            continue
        mistyped: dict[str, Any] = {path[-1] + "x": ""}
        for name in reversed(path[:-1]):
            mistyped = {name: mistyped}
        with pytest.raises(helm.HelmError):
            rendered(mistyped)


@pytest.mark.parametrize("with_token", [False, True])
def test_the_probe_tells_whether_a_line_is_among_the_metrics_of_the_pod(tmp_path: Path, with_token: bool) -> None:
    token = tmp_path / "token"
    token.write_text("of-sixteen-characters-or-more\n", encoding="utf-8")
    options: dict[str, Any] = {}
    if with_token:
        options = {"token_file": token, "federation": make_federation(tmp_path / "federation")}
    shown = [str(token)] if with_token else []

    def probe(port: int, line: str) -> int:
        command = [sys.executable, str(CHART / "files" / "answer.py"), str(port), line, *shown]
        return subprocess.run(command, capture_output=True, timeout=60).returncode

    with MetricsPort("127.0.0.1:0", **options) as port:
        assert probe(port.port, "fedbnsl_up 0.0") == 0
        assert probe(port.port, "fedbnsl_up 1.0") == 1
    assert probe(free_port(), "fedbnsl_up 0.0") == 1
