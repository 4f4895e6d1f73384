//! Changes in the API server appear in DNS, with the shipped ServiceAccount and ClusterRole.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, future, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use multinet_testing::cluster::{Cluster, client_for};
use multinet_testing::manifests::{SERVICE, SLICE, Service, Slice, types};
use multinet_testing::objects::{Namespace, Objects};
use multinet_testing::replica::{Options, Replica};

use crate::shared;

/// Starts a replica on the shared cluster, and creates a namespace for the test.
async fn start(prefix: &str) -> Result<(Namespace, Replica)> {
    let cluster = shared::cluster().await?;
    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let replica = Options::new(&kubeconfig).start_ready().await?;
    Ok((cluster.temp_namespace(prefix).await?, replica))
}

#[tokio::test]
async fn every_change_of_services_and_slices_reaches_dns() -> Result<()> {
    let (namespace, replica) = start("follow").await?;
    let (infer, host) = (namespace.domain("infer"), namespace.domain("a.infer"));

    // All names of a new service.
    namespace.apply(Service::new("infer")).await?;
    let first = Slice::new("infer-v4", "infer").ready("a", [10, 31, 0, 1]).ready("b", [10, 31, 0, 2]);
    namespace.apply(first.clone().not_ready("c", [10, 31, 0, 3])).await?;
    replica.answers(&infer, "A", &["10.31.0.1", "10.31.0.2"]).await?;
    replica.answers(&host, "A", &["10.31.0.1"]).await?;
    let target = |host| format!("0 50 18515 {host}.{infer}.");
    replica.answers(&format!("_rdma._tcp.{infer}"), "SRV", &[&target("a"), &target("b")]).await?;
    replica.answers("1.0.31.10.in-addr.arpa", "PTR", &[&format!("{host}.")]).await?;
    replica.answers("3.0.31.10.in-addr.arpa", "PTR", &[]).await?;

    // An endpoint becomes ready, one changes its address, and one is removed.
    let serial = replica.serial().await?;
    namespace
        .apply(Slice::new("infer-v4", "infer").ready("a", [10, 31, 0, 9]).ready("c", [10, 31, 0, 3]))
        .await?;
    replica.answers(&infer, "A", &["10.31.0.9", "10.31.0.3"]).await?;
    replica.answers(&host, "A", &["10.31.0.9"]).await?;
    replica.answers(&namespace.domain("b.infer"), "A", &[]).await?;
    replica.answers("1.0.31.10.in-addr.arpa", "PTR", &[]).await?;
    ensure!(replica.serial().await? > serial, "the zone has changed, but its serial has not");

    // A second slice is added and deleted.
    namespace.apply(Slice::new("infer-v6", "infer").ready("a", [0xfd00, 0, 0, 0, 0, 0, 0, 1])).await?;
    replica.answers(&host, "AAAA", &["fd00::1"]).await?;
    replica.answers(&infer, "A", &["10.31.0.9", "10.31.0.3"]).await?;
    namespace.delete(SLICE, "infer-v4").await?;
    replica.answers("3.0.31.10.in-addr.arpa", "PTR", &[]).await?;
    let reply = replica.ask(&infer, "A").await?;
    ensure!(reply.rcode() == "NOERROR" && reply.data().is_empty(), "not NODATA:\n{}", reply.text(""));

    // The service is deleted before its last slice.
    namespace.delete(SERVICE, "infer").await?;
    replica.answers(&infer, "AAAA", &[]).await?;
    replica.answers(&host, "AAAA", &[]).await
}

/// Starts a replica in a cluster with more slices than a page of a list has, which is 500 usually.
/// Checks that it answers for all of them as soon as it is ready.
async fn ready_means_complete(cluster: &Cluster) -> Result<()> {
    const SLICES: u32 = 600;
    let namespace = cluster.temp_namespace("many").await?;
    namespace.apply(Service::new("infer")).await?;
    let slices = cluster.objects().await?.api(&types(SLICE), Some(namespace.name())).await?;
    let address = |slice| Ipv4Addr::from_bits(Ipv4Addr::new(10, 3, 0, 0).to_bits() + slice);
    stream::iter(0..SLICES)
        .map(|slice| {
            let object =
                Slice::new(&format!("infer-{slice}"), "infer").ready(&format!("h{slice}"), address(slice));
            let slices = slices.clone();
            async move { slices.create(&PostParams::default(), &object.into()).await }
        })
        .buffer_unordered(16)
        .try_for_each(|_| future::ready(Ok(())))
        .await?;

    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let replica = Options::new(&kubeconfig).start_ready().await?;
    for slice in (0..SLICES).rev() {
        let name = namespace.domain(&format!("h{slice}.infer"));
        let reply = replica.ask(&name, "A").await?;
        ensure!(reply.data() == [address(slice).to_string()], "{}", reply.text(""));
    }
    Ok(())
}

#[tokio::test]
async fn a_list_that_comes_as_a_stream_is_complete() -> Result<()> {
    ready_means_complete(shared::cluster().await?).await
}

#[tokio::test]
async fn a_list_that_comes_in_pages_is_complete() -> Result<()> {
    // API servers before Kubernetes 1.34 have no streamed lists by default.
    ready_means_complete(shared::older().await?).await
}

#[tokio::test]
async fn the_role_grants_reading_two_kinds_and_nothing_else() -> Result<()> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace("role").await?;
    let client = client_for(&cluster.dns_server_kubeconfig(cluster.address()).await?).await?;
    let objects = Objects::new(client.clone());
    for (kind, object) in [
        (SERVICE, Service::new("s").into()),
        (SLICE, Slice::new("s-a", "s").ready("a", [10, 4, 0, 1]).into()),
    ] {
        let api = objects.api(&types(kind), Some(namespace.name())).await?;
        api.list(&ListParams::default()).await?;
        let error = api.create(&PostParams::default(), &object).await.err();
        ensure!(is_forbidden(error.as_ref()), "creating a {kind}: {error:?}");
    }
    let error = Api::<Pod>::all(client).list(&ListParams::default()).await.err();
    ensure!(is_forbidden(error.as_ref()), "listing Pods: {error:?}");
    Ok(())
}

fn is_forbidden(error: Option<&kube::Error>) -> bool {
    matches!(error, Some(kube::Error::Api(status)) if status.code == 403)
}
