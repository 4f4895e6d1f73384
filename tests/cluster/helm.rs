//! The charts in `deploy/helm`: they render the objects of kustomize, accept values, and are
//! installed and removed in a real cluster.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use multinet_testing::cluster::Cluster;
use multinet_testing::kubectl::shell;
use multinet_testing::markdown::{blocks, examples};
use multinet_testing::objects::parse;
use multinet_testing::server::{program, run_to_end};
use multinet_testing::tools::{helm, repository};
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::deploy::{check_hardening, copy_of_overlay};
use crate::install::SERVED;
use crate::shared;

/// Runs a shell command with `helm` and `kubectl`. Returns its output.
fn run(cluster: &Cluster, line: &str) -> Result<String> {
    let helm = helm()?;
    let folder = helm.parent().context("a program in no folder")?.display();
    shell(cluster, &format!("PATH={folder}:$PATH\n{line}"))
}

/// Returns the objects that the chart renders with these values.
pub(crate) fn rendered(cluster: &Cluster, values: &str) -> Result<BTreeMap<String, Value>> {
    rendered_by(cluster, "deploy/helm/multinet", values)
}

/// Returns the objects that the chart at a path renders with these values.
fn rendered_by(cluster: &Cluster, chart: &str, values: &str) -> Result<BTreeMap<String, Value>> {
    let line = format!("helm template multinet {chart} -n multinet-system {values}");
    by_name(&parse(&run(cluster, &line)?)?)
}

/// Returns objects by kind and name.
fn by_name(objects: &[DynamicObject]) -> Result<BTreeMap<String, Value>> {
    let all = objects.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let key = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
    Ok(all.into_iter().map(|object| (key(&object), object)).collect())
}

#[tokio::test]
async fn the_charts_render_the_objects_of_kustomize() -> Result<()> {
    let cluster = shared::cluster().await?;
    let mut wanted = by_name(&parse(&shell(cluster, "kubectl kustomize deploy/kustomize/base")?)?)?;
    let mut found = rendered(cluster, "")?;
    found.extend(rendered_by(cluster, "deploy/helm/multinet-crds", "")?);
    // The user creates the namespace with its labels before Helm runs.
    ensure!(wanted.remove("Namespace multinet-system").is_some(), "{:?}", wanted.keys());
    ensure!(wanted.keys().eq(found.keys()), "{:?}, not {:?}", found.keys(), wanted.keys());
    for (name, object) in &wanted {
        ensure!(found[name] == *object, "{name} is\n{}\nnot\n{object}", found[name]);
    }
    // Helm warns about symbolic links in a chart. A package has none.
    let packages = tempfile::tempdir()?;
    let packages = packages.path().display();
    run(cluster, &format!("helm package deploy/helm/multinet deploy/helm/multinet-crds -d {packages}"))?;
    let [all, crds] = ["multinet", "multinet-crds"]
        .map(|name| format!("{packages}/{name}-{}.tgz", env!("CARGO_PKG_VERSION")));
    let mut packaged = rendered_by(cluster, &all, "")?;
    packaged.extend(rendered_by(cluster, &crds, "")?);
    ensure!(packaged == found, "the packages render other objects: {:?}", packaged.keys());
    let linted = run(cluster, "helm lint --strict deploy/helm/multinet deploy/helm/multinet-crds")?;
    ensure!(linted.contains("2 chart(s) linted, 0 chart(s) failed"), "{linted}");
    for chart in ["multinet", "multinet-crds"] {
        let warnings = run(cluster, &format!("helm template {chart} deploy/helm/{chart} 2>&1 >/dev/null"))?;
        ensure!(warnings.is_empty(), "{warnings}");
    }
    Ok(())
}

#[tokio::test]
async fn the_network_status_policy_is_rendered_only_if_enabled() -> Result<()> {
    let cluster = shared::cluster().await?;
    let without = rendered(cluster, "")?;
    let overlay = "kubectl kustomize deploy/kustomize/overlays/network-status";
    let wanted = by_name(&parse(&shell(cluster, overlay)?)?)?;
    let mut found = rendered(cluster, "--set networkStatusPolicy.enabled=true")?;
    found.retain(|name, _| !without.contains_key(name));
    ensure!(found == wanted, "{:?}, not {:?}", found.keys(), wanted.keys());

    let users = "--set networkStatusPolicy.enabled=true --set 'networkStatusPolicy.users={a,b:c}'";
    let named = &rendered(cluster, users)?["ValidatingAdmissionPolicy multinet-network-status"];
    let variables = &named["spec"]["variables"];
    ensure!(variables[0] == json!({"name": "users", "expression": r#"["a","b:c"]"#}), "{variables}");
    ensure!(variables[1]["expression"].as_str().is_some_and(|groups| groups.contains("'system:multus'")));
    Ok(())
}

/// With --set numaflow.enabled=true, the chart has what the component adds to the base, and the
/// containers are hardened alike.
#[tokio::test]
async fn numaflow_is_rendered_only_if_enabled() -> Result<()> {
    let cluster = shared::cluster().await?;
    let registry = "--set image.registry=registry.example.com/multinet";
    let without = rendered(cluster, registry)?;
    let text = fs::read_to_string(repository().join("docs/numaflow.md"))?;
    let component = blocks(&text).into_iter().find(|block| block.starts_with("components:"));
    let component = component.context("docs/numaflow.md shows no components")?;
    let mut wanted = by_name(&copy_of_overlay(cluster, &component)?)?;
    wanted.retain(|name, _| name.ends_with(" multinet-numaflow"));
    let mut found = rendered(cluster, &format!("{registry} --set numaflow.enabled=true"))?;
    found.retain(|name, _| !without.contains_key(name));
    ensure!(found == wanted, "{found:?}, not {wanted:?}");

    let container = &found["Deployment multinet-numaflow"]["spec"]["template"]["spec"]["containers"][0];
    check_hardening(container)?;
    check_flags("multinet-numaflow", "MULTINET_NUMAFLOW_BIN", container)?;
    let values = "--namespace other --set numaflow.enabled=true --set zone=nics.example.com";
    let elsewhere = rendered(cluster, &format!("{values} --set 'numaflow.args={{--fail-closed}}'"))?;
    let args =
        &elsewhere["Deployment multinet-numaflow"]["spec"]["template"]["spec"]["containers"][0]["args"];
    ensure!(*args == json!(["--admin=[::]:9153", "--zone=nics.example.com", "--fail-closed"]), "{args}");
    let webhook = &elsewhere["MutatingWebhookConfiguration multinet-numaflow"]["webhooks"][0]["clientConfig"];
    ensure!(webhook["service"]["namespace"] == "other", "{webhook}");
    Ok(())
}

/// Sets every value of the chart, and compares the fields that they end up in.
#[tokio::test]
async fn chart_values_reach_their_fields() -> Result<()> {
    let cluster = shared::cluster().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("values.yaml");
    let values = json!({
        "image": {"registry": "registry.example.com:5000/a", "tag": "1.2.3", "pullPolicy": "Always", "pullSecrets": [{"name": "key"}]},
        "zone": "nics.example.com",
        "vertexZones": ["vertexdomain.local", "v.example.com"],
        "dns": {
            "replicas": 3,
            "args": ["--lameduck=10s", "--listen=dns://[::]:53", "--listen=dns://127.0.0.1:54", "--ttl=10"],
            "resources": {"limits": {"memory": "1Gi"}},
            "pod": {"nodeSelector": {"role": "dns"}, "tolerations": [{"operator": "Exists"}], "securityContext": {"fsGroup": 1}},
            "service": {"clusterIP": "10.96.0.53", "annotations": {"who": "dns"}},
        },
        "controller": {
            "replicas": 0,
            "args": ["--concurrent-writes=4"],
            "resources": {"requests": {"cpu": "1"}},
            "pod": {"priorityClassName": "system-cluster-critical"},
            "extraVolumes": [{"name": "extra", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
            "extraPorts": [{"name": "extra", "containerPort": 1}],
            "extraIngress": [{"ports": [{"port": "extra"}]}],
            "extraEgress": [{"ports": [{"port": 2}]}],
        },
        "networkPolicy": {"apiServerPorts": [16443]},
    });
    fs::write(&file, values.to_string())?;
    let objects = rendered(cluster, &format!("--namespace other -f {}", file.display()))?;

    let dns = &objects["Deployment multinet-dns"]["spec"];
    let controller = &objects["Deployment multinet-controller"]["spec"];
    let (dns_pod, controller_pod) = (&dns["template"]["spec"], &controller["template"]["spec"]);
    let egress = json!([{"ports": [{"port": 16443, "protocol": "TCP"}]}]);
    let policy = &objects["NetworkPolicy multinet-controller"]["spec"];
    // The flags of the manifest, without those that the values override.
    let args = json!([
        "--admin=[::]:9153",
        "--snapshot=/var/lib/multinet/dns.snapshot",
        "--zone=nics.example.com",
        "--vertex-zone=vertexdomain.local",
        "--vertex-zone=v.example.com",
        "--lameduck=10s",
        "--listen=dns://[::]:53",
        "--listen=dns://127.0.0.1:54",
        "--ttl=10"
    ]);
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
        // Values that are merged into an object keep its other fields.
        (&dns_pod["securityContext"]["fsGroup"], json!(1)),
        (&dns_pod["securityContext"]["runAsNonRoot"], json!(true)),
        (&objects["Service multinet-dns"]["spec"]["clusterIP"], json!("10.96.0.53")),
        (&objects["Service multinet-dns"]["metadata"]["annotations"], json!({"who": "dns"})),
        (&objects["NetworkPolicy multinet-dns"]["spec"]["egress"], egress),
        (&policy["ingress"][1], json!({"ports": [{"port": "extra"}]})),
        (&policy["egress"][0], json!({"ports": [{"port": 16443, "protocol": "TCP"}]})),
        (&policy["egress"][1], json!({"ports": [{"port": 2}]})),
        (&dns_pod["containers"][0]["args"], args),
        (&controller_pod["volumes"], json!([{"name": "extra", "emptyDir": {}}])),
        (&controller_pod["containers"][0]["volumeMounts"], json!([{"name": "extra", "mountPath": "/extra"}])),
        (&controller_pod["containers"][0]["ports"][1], json!({"name": "extra", "containerPort": 1})),
        (&objects["ClusterRoleBinding multinet-dns"]["subjects"][0]["namespace"], json!("other")),
        (&objects["Role multinet-controller"]["metadata"]["namespace"], json!("other")),
    ];
    for (found, wanted) in cases {
        ensure!(*found == wanted, "{found}, not {wanted}");
    }
    check_flags("multinet-dns", "MULTINET_DNS_BIN", &dns_pod["containers"][0])?;
    check_flags("multinet-controller", "MULTINET_CONTROLLER_BIN", &controller_pod["containers"][0])?;

    let narrow = "--set 'networkPolicy.apiServerCidrs={192.0.2.1/32,2001:db8::1/128}'";
    let narrow = &rendered(cluster, narrow)?["NetworkPolicy multinet-dns"]["spec"]["egress"][0];
    let blocks = json!([{"ipBlock": {"cidr": "192.0.2.1/32"}}, {"ipBlock": {"cidr": "2001:db8::1/128"}}]);
    ensure!(narrow["to"] == blocks && narrow["ports"][1]["port"] == 6443, "{narrow}");

    let without = rendered(cluster, "--set networkPolicy.enabled=false")?;
    ensure!(without.keys().all(|name| !name.starts_with("NetworkPolicy")), "{:?}", without.keys());
    Ok(())
}

/// With the component, kustomize renders the objects that the chart does with `publish.enabled`.
#[tokio::test]
async fn the_chart_renders_the_publisher_as_the_component_does() -> Result<()> {
    let cluster = shared::cluster().await?;
    let more = "components:\n- ../../components/publish\n";
    let wanted = by_name(&copy_of_overlay(cluster, more)?)?;
    let url = "--etcd=https://10.0.0.1:2379";
    let values = format!(
        "--set publish.enabled=true,image.registry=registry.example.com/multinet --set 'publish.args={{{url}}}'"
    );
    let found = rendered(cluster, &values)?;
    let of_publisher = |name: &&String| name.ends_with(" multinet-publish");
    let names: Vec<&String> = wanted.keys().filter(of_publisher).collect();
    ensure!(names.len() == 8, "{names:?}");
    ensure!(found.keys().filter(of_publisher).eq(names.iter().copied()), "{:?}", found.keys());
    for name in names {
        let (mut found, mut wanted) = (found[name].clone(), wanted[name].clone());
        if name.starts_with("Deployment ") {
            // The URL replaces that of the example, and comes last.
            let containers = [&mut found, &mut wanted]
                .map(|object| &mut object["spec"]["template"]["spec"]["containers"][0]);
            for container in containers {
                let args = container["args"].as_array_mut().context("no flags")?;
                args.retain(|flag| !flag.as_str().is_some_and(|flag| flag.starts_with("--etcd=")));
                args.push(json!(url));
                check_flags("multinet-publish", "MULTINET_PUBLISH_BIN", container)?;
            }
        }
        ensure!(found == wanted, "{name} is\n{found}\nnot\n{wanted}");
    }
    // The API server accepts the objects.
    let line = format!(
        "helm template multinet deploy/helm/multinet -n default {values} | kubectl apply --dry-run=server -f -"
    );
    run(cluster, &line).map(drop)
}

/// The capability NET_BIND_SERVICE and the sysctl are rendered only for listeners on ports below
/// 1024. The Service targets the port of the listener.
#[tokio::test]
async fn privileges_for_low_ports_are_rendered_only_with_such_ports() -> Result<()> {
    let cluster = shared::cluster().await?;
    for (listen, port, needs) in [
        ("--listen=dns://[::]:5353", 5353, false),
        ("--listen=tls://[::]:8853,--listen=[::]:1024", 1024, false),
        ("--listen=dns://[::]:5353\\,tls://[::]:853", 5353, true),
        ("--listen=dns://0.0.0.0:53", 53, true),
    ] {
        let objects = rendered(cluster, &format!("--set 'dns.args={{{listen}}}'"))?;
        let pod = &objects["Deployment multinet-dns"]["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let added = container["securityContext"]["capabilities"].get("add").is_some();
        let sysctls = pod["securityContext"].get("sysctls").is_some();
        ensure!((added, sysctls) == (needs, needs), "{listen}: {pod}");
        ensure!(container["securityContext"]["capabilities"]["drop"] == json!(["ALL"]), "{listen}: {pod}");
        let ports: Vec<_> =
            container["ports"].as_array().into_iter().flatten().map(|port| &port["containerPort"]).collect();
        ensure!(ports == [port, port, 9153], "{listen}: {ports:?}");
    }
    Ok(())
}

/// Fails if the program rejects the container's flags. The last flag is `--version`, which makes
/// the program end successfully if all others are valid.
fn check_flags(name: &str, variable: &str, container: &Value) -> Result<()> {
    let args: Vec<String> = serde_json::from_value(container["args"].clone())?;
    let output = run_to_end(program(name, variable)?.args(&args).arg("--version"))?;
    ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[tokio::test]
async fn the_helm_values_of_the_documentation_work() -> Result<()> {
    let cluster = shared::cluster().await?;
    let text = fs::read_to_string(repository().join("docs/install.md"))?;
    let values = blocks(&text).into_iter().find(|block| block.starts_with("dns:\n")).context("no values")?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("values.yaml");
    fs::write(&file, values)?;
    let values = format!("-f {}", file.display());
    let objects = rendered(cluster, &values)?;

    let pod = &objects["Deployment multinet-dns"]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    check_flags("multinet-dns", "MULTINET_DNS_BIN", container)?;
    let args = container["args"].to_string();
    ensure!(args.matches("--listen=dns://[::]:53").count() == 1 && args.contains("--admin="), "{args}");
    // The volumes of the base stay.
    for (list, field, wanted) in [
        (&pod["volumes"], "name", ["snapshot", "tls", "tsig"]),
        (&container["volumeMounts"], "name", ["snapshot", "tls", "tsig"]),
        (
            &container["volumeMounts"],
            "mountPath",
            ["/var/lib/multinet", "/etc/multinet/tls", "/etc/multinet/tsig"],
        ),
    ] {
        let found: Vec<_> = list.as_array().into_iter().flatten().map(|entry| &entry[field]).collect();
        ensure!(found == wanted, "{found:?}, not {wanted:?}");
    }
    let port = json!({"name": "dns-tls", "port": 853, "targetPort": "dns-tls", "protocol": "TCP"});
    ensure!(
        objects["Service multinet-dns"]["spec"]["ports"][3] == port,
        "{}",
        objects["Service multinet-dns"]
    );
    let policy = &objects["NetworkPolicy multinet-dns"]["spec"];
    ensure!(policy["ingress"][2]["ports"][0]["port"] == "dns-tls", "{policy}");
    ensure!(policy["egress"][1]["ports"] == json!([{"port": 53, "protocol": "UDP"}]), "{policy}");
    let controller = &objects["NetworkPolicy multinet-controller"]["spec"];
    ensure!(controller["egress"].as_array().is_some_and(|rules| rules.len() == 1), "{controller}");

    // The API server accepts the objects.
    let line = format!(
        "helm template multinet deploy/helm/multinet -n default {values} | kubectl apply --dry-run=server -f -"
    );
    run(cluster, &line).map(drop)
}

#[tokio::test]
async fn mistakes_in_values_are_refused() -> Result<()> {
    let cluster = shared::cluster().await?;
    for (values, needle) in [
        ("--set dns.replica=3", "replica"),
        ("--set zones=a", "zones"),
        ("--set zone=multinet..local", "/zone"),
        ("--set zone=multinet_.local", "/zone"),
        ("--set vertexZones={a_b}", "/vertexZones/0"),
        ("--set dns.replicas=-1", "/dns/replicas"),
        // Helm removes a value that is null.
        ("--set dns.replicas=null", "'replicas'"),
        ("--set networkPolicy.apiServerPorts=null", "'apiServerPorts'"),
        ("--set dns.extraVolumes=null", "'extraVolumes'"),
        ("--set controller.extraPorts[0].name=tls", "'containerPort'"),
        ("--set dns.extraEgress={all}", "/dns/extraEgress/0"),
        ("--set controller.args={ttl=10}", "/controller/args/0"),
        ("--set image.pullPolicy=Often", "/image/pullPolicy"),
        ("--set image.registry=registry.example.com/", "/image/registry"),
        ("--set networkPolicy.apiServerPorts={70000}", "/networkPolicy/apiServerPorts/0"),
        ("--set networkPolicy.apiServerCidrs={192.0.2.1}", "/networkPolicy/apiServerCidrs/0"),
        ("--set publish.enabled=no-thanks", "/publish/enabled"),
        ("--set mirrors.enabled=no-thanks", "/mirrors/enabled"),
        ("--set networkStatusPolicy.users={}", "/networkStatusPolicy/users/0"),
    ] {
        let said = rendered(cluster, &format!("'{}'", values.replacen(' ', "' '", 1)));
        let said = format!("{:#}", said.err().with_context(|| format!("{values} is accepted"))?);
        ensure!(
            said.contains("values don't meet the specifications") && said.contains(needle),
            "{values}: {said}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_helm_commands_of_the_documentation_work() -> Result<()> {
    let cluster = Cluster::start().await?;
    let text = fs::read_to_string(repository().join("docs/install.md"))?;
    let (_, section) = text.split_once("### With Helm").context("no section")?;
    let (section, moving) = section.split_once("\n### From kustomize to Helm").context("no end")?;
    let (moving, _) = moving.split_once("\n## ").context("no end")?;
    let commands = examples(section);
    ensure!(commands.len() == 3, "{} commands", commands.len());
    // The second command upgrades the release.
    for example in commands.iter().chain(&commands) {
        run(&cluster, &example.command).with_context(|| example.command.clone())?;
    }
    let image = "kubectl get deployment multinet-dns -n multinet-system -o jsonpath='{..image}'";
    let image = shell(&cluster, image)?;
    ensure!(image.starts_with("registry.example.com/multinet/multinet-dns:"), "{image}");
    eventually("the API server to serve our kinds", SERVED, async || {
        shell(&cluster, "kubectl get mnsvc,mneps -A").map(drop)
    })
    .await?;

    let moving: Vec<String> = examples(moving).into_iter().map(|example| example.command).collect();
    let [take_crds, take, roll_back, apply, forget] = moving.as_slice() else {
        anyhow::bail!("{moving:?}");
    };
    let uids = || {
        shell(
            &cluster,
            "kubectl get crd,deploy,svc -A -l app.kubernetes.io/part-of=multinet -o jsonpath='{..uid}'",
        )
    };
    let before = uids()?;
    for (line, releases) in
        [(apply, 2), (forget, 0), (take_crds, 1), (take, 2), (take, 2), (roll_back, 2), (roll_back, 2)]
    {
        run(&cluster, line).with_context(|| line.clone())?;
        let listed = run(&cluster, "helm list -A -q")?;
        ensure!(listed.lines().count() == releases, "after {line}: {listed}");
    }
    ensure!(!before.is_empty() && uids()? == before, "{before} became {}", uids()?);

    let left =
        |what: &str| shell(&cluster, &format!("kubectl get {what} -A -o name | grep multinet || true"));
    for line in
        ["helm uninstall multinet -n multinet-system", "helm uninstall multinet-crds -n multinet-system"]
    {
        ensure!(section.contains(line), "docs/install.md does not show: {line}");
        ensure!(left("crd")?.lines().count() == 2, "the definitions were removed, too");
        run(&cluster, line)?;
    }
    let kinds = "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,\
                 serviceaccount,deployment,service,networkpolicy,pdb,role,rolebinding";
    eventually("all objects to be removed", SERVED, async || {
        let left = left(kinds)?;
        ensure!(left.is_empty(), "objects are left:\n{left}");
        Ok(())
    })
    .await
}
