//! Annotations of the real Multus, followed by the controller. The pods are network namespaces
//! without a kubelet.

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::ControllerOptions;
use multinet_testing::multus::Multus;
use multinet_testing::netns::{LightPod, NETWORKS};
use multinet_testing::objects::Namespace;
use multinet_testing::pods::Pod;
use multinet_testing::replica::Options;
use multinet_testing::sandboxed;
use multinet_testing::slices::Slices;
use multinet_testing::status::Status;
use serde_json::json;

/// Returns the service for the pods with `app=infer`, on these networks.
fn service(networks: &[&str]) -> Result<DynamicObject> {
    let networks: Vec<_> = networks.iter().map(|name| json!({ "name": name })).collect();
    Ok(serde_json::from_value(json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkService",
        "metadata": {"name": "infer"},
        "spec": {"selector": {"matchLabels": {"app": "infer"}}, "networks": networks},
    }))?)
}

/// Returns the expected lines of [`Slices`] for ready pods.
async fn ready(pods: &[(&str, &LightPod)]) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (alias, pod) in pods {
        let name = pod.object().await?.metadata.name.context("a pod without name")?;
        let addresses = pod.addresses().await?;
        lines.extend(addresses.iter().map(|(_, address)| format!("{alias} {address} {name} rs-")));
    }
    Ok(lines)
}

async fn ping(from: &LightPod, address: &str) -> Result<()> {
    // An IPv6 address may be tentative for up to a second.
    multinet_testing::wait::eventually(
        &format!("{address} to answer"),
        multinet_testing::replica::BOUND,
        async || {
            let output = from.command("busybox").args(["ping", "-c", "1", "-W", "1", address]).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Ok(())
        },
    )
    .await
}

#[tokio::test]
async fn annotations_of_multus_are_followed() -> Result<()> {
    sandboxed!();
    let cluster = Cluster::start().await?;
    cluster.apply_crds().await?;
    cluster.apply_rbac().await?;
    let multus = Multus::set_up(&cluster).await?;
    let namespace = cluster.temp_namespace("attached").await?;
    namespace
        .apply(multus.macvlan(namespace.name(), "rail", &["192.168.111.0/24", "fd00:111::/112"])?)
        .await?;
    namespace.apply(multus.macvlan(namespace.name(), "other", &["192.168.112.0/24"])?).await?;
    namespace.apply(service(&["rail"])?).await?;
    let address = cluster.address();
    let _controller =
        ControllerOptions::controller(&cluster.controller_kubeconfig(address).await?).start_ready().await?;
    let dns = Options::new(&cluster.dns_server_kubeconfig(address).await?).start_ready().await?;

    // The pods have both families, two interfaces on one network, and one on a network that the
    // service does not publish.
    let pod = |name: &str, networks: &str| Pod::new(name).annotation(NETWORKS, networks);
    let mut simple = LightPod::start(&multus, &namespace, pod("simple", "rail")).await?;
    let twice = LightPod::start(&multus, &namespace, pod("twice", "rail,rail,other")).await?;
    let addresses = twice.addresses().await?;
    ensure!(addresses.len() == 5, "not two of each family on rail and one on other: {addresses:?}");
    let expected = ready(&[("rail", &simple), ("rail", &twice)]).await?;
    let expected: Vec<_> = expected.into_iter().filter(|line| !line.contains("192.168.112.")).collect();
    ensure!(expected.len() == 6, "{expected:?}");
    let slices = Slices::of(&namespace, "infer")?;
    slices.are(&expected).await?;
    served(&namespace, &dns, &expected).await?;
    for (_, address) in simple.addresses().await? {
        ping(&twice, &address).await?;
    }

    // The annotation outlives the interface. The controller goes by the end of the pod.
    simple.detach().await?;
    ensure!(!simple.addresses().await?.is_empty(), "Multus has removed the annotation");
    Status::of(&namespace, "infer")?.counts(2, 2).await?;
    simple.remove().await?;
    let expected: Vec<_> = expected.into_iter().filter(|line| line.contains(" twice ")).collect();
    slices.are(&expected).await?;
    served(&namespace, &dns, &expected).await?;

    // A new pod has the same name, and gets the address that has become free.
    let again = LightPod::start(&multus, &namespace, pod("simple", "rail")).await?;
    let expected = [expected, ready(&[("rail", &again)]).await?].concat();
    slices.are(&expected).await?;
    served(&namespace, &dns, &expected).await?;
    again.remove().await?;
    twice.remove().await?;
    slices.are::<String>(&[]).await
}

/// Waits until DNS answers the addresses in these lines, by family.
async fn served(
    namespace: &Namespace,
    dns: &multinet_testing::replica::Replica,
    lines: &[String],
) -> Result<()> {
    for (rtype, is_v6) in [("A", false), ("AAAA", true)] {
        let addresses = lines.iter().filter_map(|line| line.split(' ').nth(1));
        let addresses: Vec<_> = addresses.filter(|address| address.contains(':') == is_v6).collect();
        dns.answers(&namespace.domain("infer"), rtype, &addresses).await?;
    }
    Ok(())
}
