"""Checks the chart: python chart.py CHART MANIFESTS OUT [--write]

Lints and renders it with several values, validates what comes out against the schemas of Kubernetes, and compares what it
renders by default with MANIFESTS, which --write writes. Into the folder OUT it puts the settings of each component, and as
crds.json the objects that Kubernetes itself does not know, for crds.mjs. Needs helm-python-sdk, kubernetes-validate and
yamllint. tests/deploy/chart.rs runs it.
"""
import json
import re
import sys
from pathlib import Path

import kubernetes_validate
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError
from yamllint import linter
from yamllint.config import YamlLintConfig

CHART, MANIFESTS, OUT = sys.argv[1:4]
HEAD = """# Longshore on Kubernetes, beside a NATS that is there already: two gateways and three workers. Made from deploy/chart with its
# default values; change those, not this file. Set at least the image and the address of NATS to your own.
#
#   kubectl apply --filename deploy/kubernetes.yml
"""
ALL_ON = {
    "connection": {"url": "tls://n1:4222", "secret": "login", "files": "certificates"},
    "image": {"repository": "registry.example/longshore", "tag": "1", "pullSecrets": ["pull"]},
    "pools": {
        "main": {"queues": {"main": {"concurrency": 8, "max_waiting": 1000}}},
        "slow": {
            "replicas": 0,
            "shutdownGraceSeconds": 600,
            "queues": {"Reports": {"concurrency": 2, "aging": "5m", "fair_by": "type"}, "main": {"aging": "1m"}},
        },
    },
    "settings": 'namespace = "shop"\n[storage]\nreplicas = 3\n',
    "scaling": {"enabled": True, "minReplicas": 0},
    "networkPolicy": {
        "clientNamespaces": ["keda", "monitoring"],
        "workersReachTheInternet": True,
        "egress": [{"ports": [{"port": 4318}]}],
    },
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
}
REFUSED = [
    {"pool": {}},
    {"image": {"tags": "1"}},
    {"gateway": {"replicas": 1}},
    {"gateway": {"queues": {}}},
    {"pools": {"gateway": {"queues": {"main": {}}}}},
    {"pools": {"main": {"queues": {"a.b": {}}}}},
    {"pools": {"slow": {}}},
    {"pools": {"main": {"queues": {"main": {"concurency": 1}}}}},
    {"scaling": {"minReplica": 0}},
    {"networkPolicy": {"enabled": "yes"}},
    {"nats": {"enabled": "yes"}},
]


def render(chart, values):
    """The objects, and their text: all but those of helm test."""
    files = chart.render(values=values, name="longshore", namespace="jobs")
    text = "".join(
        "---\n" + file.strip() + "\n"
        for name, file in sorted(files.items())
        if "/tests/" not in name and file.strip()
    )
    wrong = list(linter.run(text, YamlLintConfig("rules: {key-duplicates: enable, trailing-spaces: enable}")))
    assert not wrong, wrong
    every = "\n---\n".join(files.values())
    return [thing for thing in yaml.safe_load_all(every) if thing], re.sub(r"---\n+(---\n)+", "---\n", text)


def validate(objects):
    """Those of Kubernetes, in the newest version that is known and in the oldest that the chart wants; gives the others."""
    others = []
    for thing in objects:
        if re.search(r"keda|coreos", thing["apiVersion"]):
            others.append(thing)
            continue
        for version in ["1.27", kubernetes_validate.latest_version()]:
            kubernetes_validate.validate(thing, version, strict=True)
    return others


def fit(objects, values):
    """What one object says of another is so."""
    of = lambda kind: {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}
    deployments, settings = of("Deployment"), of("ConfigMap")
    pools = {f"longshore-{name}": pool for name, pool in values["pools"].items()}
    assert deployments.keys() == {"longshore-gateway"} | pools.keys() == settings.keys(), deployments.keys()
    assert deployments.keys() == of("PodDisruptionBudget").keys()
    for name, deployment in deployments.items():
        spec, pod = deployment["spec"], deployment["spec"]["template"]["spec"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        for selector in [spec["selector"], of("PodDisruptionBudget")[name]["spec"]["selector"]]:
            assert selector["matchLabels"].items() <= labels.items(), name
        file = settings[name]["data"]["longshore.toml"]
        assert pod["volumes"][0]["configMap"]["name"] == name
        grace = int(re.search(r'shutdown_grace = "(\d+)s"', file)[1])
        assert pod["terminationGracePeriodSeconds"] >= grace + 30, name
        assert ("gateway = true" in file) == (name == "longshore-gateway"), file
        queues = set(re.findall(r"\[queues\.(.+)\]", file))
        mine = [pools[name]] if name in pools else pools.values()
        assert queues == {queue for pool in mine for queue in pool["queues"]}, file
        scaled = name in pools and values["scaling"]["enabled"]
        assert ("replicas" in spec) != scaled and (name in of("ScaledObject")) == scaled, name
        if scaled:
            urls = {trigger["metadata"]["url"] for trigger in of("ScaledObject")[name]["spec"]["triggers"]}
            gateway = "http://longshore-gateway.jobs.svc:8080"
            assert urls == {f"{gateway}/v1/queues/{queue}?tenant=_all" for queue in queues}, urls
        (Path(OUT) / f"{name}-{len(pools)}.toml").write_text(file)
    # helm test: the doctor, with the gateway's settings and the nodes' way to NATS.
    doctor, node = of("Pod")["longshore-doctor"], deployments["longshore-gateway"]["spec"]["template"]["spec"]
    assert doctor["metadata"]["annotations"]["helm.sh/hook"] == "test"
    container = doctor["spec"]["containers"][0]
    assert container["args"] == ["doctor", "--config", "/etc/longshore/settings/longshore.toml"], container
    for field in ["env", "envFrom", "volumeMounts", "image", "securityContext"]:
        assert container.get(field) == node["containers"][0].get(field), field
    assert doctor["spec"]["volumes"] == node["volumes"]
    own = "nats://longshore-nats:4222" if values["nats"]["enabled"] else "nats://nats:4222"
    assert container["env"][0] == {"name": "NATS_URL", "value": values["connection"]["url"] or own}, container["env"]
    gateway = deployments["longshore-gateway"]["spec"]["template"]["metadata"]["labels"]
    assert of("Service")["longshore-gateway"]["spec"]["selector"].items() <= gateway.items()


chart = Chart.load(CHART)
messages = [message["error"] for message in lint(CHART)["messages"] if message["severity"] > 1]
# It is off, and fetched by those who turn it on.
assert messages == ["chart directory is missing these dependencies: nats"], messages
others = []
for values in [{}, ALL_ON, {"nats": {"enabled": True}}]:
    objects, text = render(chart, values)
    others += validate(objects)
    fit(objects, chart.merge_values(values))
    if values == {}:
        default = HEAD + text
checksums = [set(re.findall("checksum/settings: (.*)", render(chart, values)[1])) for values in [{}, {"settings": ""}]]
assert len(checksums[0]) == 2 and not checksums[0] & checksums[1], checksums
for values in REFUSED:
    try:
        chart.render(values=values, name="longshore")
    except HelmError:
        continue
    raise AssertionError(f"the schema lets pass {values}")
(Path(OUT) / "crds.json").write_text(json.dumps(others))
if "--write" in sys.argv:
    Path(MANIFESTS).write_text(default)
if Path(MANIFESTS).read_text() != default:
    sys.exit(f"{MANIFESTS} is not what the chart renders: write it anew with --write")
print("all checked")
