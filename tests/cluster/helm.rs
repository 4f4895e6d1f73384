//! The charts in `deploy/helm`: they bring what kustomize brings, take values, and come and go in a real cluster.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use multinet_tests::cluster::Cluster;
use multinet_tests::kubectl::shell;
use multinet_tests::markdown::examples;
use multinet_tests::objects::parse;
use multinet_tests::tools::{helm, repository};
use multinet_tests::wait::eventually;
use serde_json::{Value, json};

use crate::install::SERVED;

/// Runs a line of shell with `helm`.
fn run(cluster: &Cluster, line: &str) -> Result<String> {
    let helm = helm()?;
    let folder = helm.parent().context("a program in no folder")?.display();
    shell(cluster, &format!("PATH={folder}:$PATH\n{line}"))
}

/// What the chart makes of these values.
fn rendered(cluster: &Cluster, values: &str) -> Result<BTreeMap<String, Value>> {
    rendered_by(cluster, "deploy/helm/multinet", values)
}

/// What the chart at a path makes of them.
fn rendered_by(cluster: &Cluster, chart: &str, values: &str) -> Result<BTreeMap<String, Value>> {
    let line = format!("helm template multinet {chart} -n multinet-system {values}");
    by_name(&parse(&run(cluster, &line)?)?)
}

/// Objects by kind and name.
fn by_name(objects: &[DynamicObject]) -> Result<BTreeMap<String, Value>> {
    let all = objects.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let key = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
    Ok(all.into_iter().map(|object| (key(&object), object)).collect())
}

#[tokio::test]
async fn the_charts_bring_what_kustomize_brings() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let mut wanted = by_name(&parse(&shell(cluster, "kubectl kustomize deploy/kustomize/base")?)?)?;
    let mut found = rendered(cluster, "")?;
    found.extend(rendered_by(cluster, "deploy/helm/multinet-crds", "")?);
    // It is there before, with its labels.
    ensure!(wanted.remove("Namespace multinet-system").is_some(), "{:?}", wanted.keys());
    ensure!(wanted.keys().eq(found.keys()), "{:?}, not {:?}", found.keys(), wanted.keys());
    for (name, object) in &wanted {
        ensure!(found[name] == *object, "{name} is\n{}\nnot\n{object}", found[name]);
    }
    // The chart's links to kustomize's folder are files in a package.
    let packages = tempfile::tempdir()?;
    let packages = packages.path().display();
    run(cluster, &format!("helm package deploy/helm/multinet deploy/helm/multinet-crds -d {packages}"))?;
    let [all, crds] = ["multinet", "multinet-crds"]
        .map(|name| format!("{packages}/{name}-{}.tgz", env!("CARGO_PKG_VERSION")));
    let mut packaged = rendered_by(cluster, &all, "")?;
    packaged.extend(rendered_by(cluster, &crds, "")?);
    ensure!(packaged == found, "packages say something else: {:?}", packaged.keys());
    let linted = run(cluster, "helm lint --strict deploy/helm/multinet deploy/helm/multinet-crds")?;
    ensure!(linted.contains("2 chart(s) linted, 0 chart(s) failed"), "{linted}");
    Ok(())
}

/// All values that there are, one way or another, and where they have to come to.
#[tokio::test]
async fn values_are_put_in() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("values.yaml");
    let values = json!({
        "image": {"registry": "registry.example.com:5000/a", "tag": "1.2.3", "pullPolicy": "Always", "pullSecrets": [{"name": "key"}]},
        "zone": "nics.example.com",
        "dns": {
            "replicas": 3,
            "args": ["--ttl=10", "--log-format=json"],
            "resources": {"limits": {"memory": "1Gi"}},
            "pod": {"nodeSelector": {"role": "dns"}, "tolerations": [{"operator": "Exists"}], "securityContext": {"fsGroup": 1}},
            "service": {"clusterIP": "10.96.0.53", "annotations": {"who": "dns"}},
        },
        "controller": {
            "replicas": 0,
            "args": ["--concurrent-writes=4"],
            "resources": {"requests": {"cpu": "1"}},
            "pod": {"priorityClassName": "system-cluster-critical"},
        },
        "networkPolicy": {"apiServerPorts": [16443]},
    });
    fs::write(&file, values.to_string())?;
    let objects = rendered(cluster, &format!("--namespace other -f {}", file.display()))?;

    let dns = &objects["Deployment multinet-dns"]["spec"];
    let controller = &objects["Deployment multinet-controller"]["spec"];
    let (dns_pod, controller_pod) = (&dns["template"]["spec"], &controller["template"]["spec"]);
    let egress = json!([{"ports": [{"port": 16443, "protocol": "TCP"}]}]);
    let cases = [
        (&dns["replicas"], json!(3)),
        (&controller["replicas"], json!(0)),
        (&dns_pod["containers"][0]["image"], json!("registry.example.com:5000/a/multinet-dns:1.2.3")),
        (
            &controller_pod["containers"][0]["image"],
            json!("registry.example.com:5000/a/multinet-controller:1.2.3"),
        ),
        (&dns_pod["containers"][0]["imagePullPolicy"], json!("Always")),
        (&controller_pod["imagePullSecrets"], json!([{"name": "key"}])),
        (&dns_pod["containers"][0]["resources"], json!({"limits": {"memory": "1Gi"}})),
        (&controller_pod["containers"][0]["resources"], json!({"requests": {"cpu": "1"}})),
        (
            &controller_pod["containers"][0]["args"],
            json!(["--admin=[::]:9153", "--zone=nics.example.com", "--concurrent-writes=4"]),
        ),
        (&dns_pod["nodeSelector"], json!({"role": "dns"})),
        (&dns_pod["tolerations"], json!([{"operator": "Exists"}])),
        (&controller_pod["priorityClassName"], json!("system-cluster-critical")),
        // What is put over ours leaves the rest of it.
        (&dns_pod["securityContext"]["fsGroup"], json!(1)),
        (&dns_pod["securityContext"]["runAsNonRoot"], json!(true)),
        (&objects["Service multinet-dns"]["spec"]["clusterIP"], json!("10.96.0.53")),
        (&objects["Service multinet-dns"]["metadata"]["annotations"], json!({"who": "dns"})),
        (&objects["NetworkPolicy multinet-dns"]["spec"]["egress"], egress.clone()),
        (&objects["NetworkPolicy multinet-controller"]["spec"]["egress"], egress),
        (&objects["ClusterRoleBinding multinet-dns"]["subjects"][0]["namespace"], json!("other")),
        (&objects["Role multinet-controller"]["metadata"]["namespace"], json!("other")),
    ];
    for (found, wanted) in cases {
        ensure!(*found == wanted, "{found}, not {wanted}");
    }
    let args = dns_pod["containers"][0]["args"].to_string();
    ensure!(args.ends_with(r#""--zone=nics.example.com","--ttl=10","--log-format=json"]"#), "{args}");

    let without = rendered(cluster, "--set networkPolicy.enabled=false")?;
    ensure!(without.keys().all(|name| !name.starts_with("NetworkPolicy")), "{:?}", without.keys());
    Ok(())
}

#[tokio::test]
async fn mistakes_in_values_are_refused() -> Result<()> {
    let cluster = Cluster::shared().await?;
    for (values, needle) in [
        ("--set dns.replica=3", "replica"),
        ("--set zones=a", "zones"),
        ("--set dns.replicas=-1", "/dns/replicas"),
        // Helm takes a value that is null away.
        ("--set dns.replicas=null", "'replicas'"),
        ("--set networkPolicy.apiServerPorts=null", "'apiServerPorts'"),
        ("--set controller.args={ttl=10}", "/controller/args/0"),
        ("--set image.pullPolicy=Often", "/image/pullPolicy"),
        ("--set image.registry=registry.example.com/", "/image/registry"),
        ("--set networkPolicy.apiServerPorts={70000}", "/networkPolicy/apiServerPorts/0"),
    ] {
        let said = rendered(cluster, &format!("'{}'", values.replacen(' ', "' '", 1)));
        let said = format!("{:#}", said.err().with_context(|| format!("{values} is taken"))?);
        ensure!(
            said.contains("values don't meet the specifications") && said.contains(needle),
            "{values}: {said}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_commands_for_helm_work() -> Result<()> {
    let cluster = Cluster::start().await?;
    let text = fs::read_to_string(repository().join("docs/install.md"))?;
    let (_, section) = text.split_once("### With Helm").context("no section")?;
    let (section, _) = section.split_once("\n## ").context("no end")?;
    let commands = examples(section);
    ensure!(commands.len() == 3, "{} commands", commands.len());
    // What is there already is upgraded.
    for example in commands.iter().chain(&commands) {
        run(&cluster, &example.command).with_context(|| example.command.clone())?;
    }
    let image = "kubectl get deployment multinet-dns -n multinet-system -o jsonpath='{..image}'";
    let image = shell(&cluster, image)?;
    ensure!(image.starts_with("registry.example.com/multinet/multinet-dns:"), "{image}");
    eventually("the definitions", SERVED, async || shell(&cluster, "kubectl get mnsvc,mneps -A").map(drop))
        .await?;

    let left =
        |what: &str| shell(&cluster, &format!("kubectl get {what} -A -o name | grep multinet || true"));
    for line in
        ["helm uninstall multinet -n multinet-system", "helm uninstall multinet-crds -n multinet-system"]
    {
        ensure!(section.contains(line), "not in the documentation: {line}");
        ensure!(left("crd")?.lines().count() == 2, "the definitions went with the rest");
        run(&cluster, line)?;
    }
    let kinds = "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,\
                 serviceaccount,deployment,service,networkpolicy,pdb,role,rolebinding";
    eventually("the end of all", SERVED, async || {
        let left = left(kinds)?;
        ensure!(left.is_empty(), "still there:\n{left}");
        Ok(())
    })
    .await
}
