//! Faults of the control plane while `multinet-dns` serves: it keeps the last known answers, gives
//! no wrong ones, and catches up afterwards.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use multinet_testing::cluster::Cluster;
use multinet_testing::manifests::{SERVICE, SLICE, Service, Slice, types};
use multinet_testing::objects::Namespace;
use multinet_testing::proxy::{Link, Proxy};
use multinet_testing::replica::{BOUND, Options, Replica};
use multinet_testing::wait::eventually;
use multinet_testing::witness::Witness;

use crate::account::Account;
use crate::shared;

/// Starts a control plane that the test may break.
async fn own_cluster() -> Result<Cluster> {
    let cluster = Cluster::start().await?;
    cluster.apply_crds().await?;
    cluster.apply_rbac().await?;
    Ok(cluster)
}

/// Replica that reaches a cluster through a proxy, and services: some that the test changes, and
/// one whose answer must never change.
struct Stage {
    /// Third byte of the addresses, which differs between tests that share a cluster.
    net: u8,
    proxy: Proxy,
    namespace: Namespace,
    replica: Replica,
    witness: Witness,
}

impl Stage {
    /// Starts the replica, with services in a new namespace of a cluster.
    async fn start(cluster: &Cluster, net: u8) -> Result<Self> {
        let namespace = cluster.temp_namespace("faults").await?;
        let proxy = Proxy::start(cluster.address()).await?;
        let kubeconfig = cluster.dns_server_kubeconfig(proxy.address()).await?;
        Self::start_for(namespace, proxy, &kubeconfig, net).await
    }

    /// Starts the replica with the account of a kubeconfig file.
    async fn start_for(namespace: Namespace, proxy: Proxy, kubeconfig: &Path, net: u8) -> Result<Self> {
        for (service, address) in [("steady", 1), ("changing", 2), ("leaving", 3)] {
            namespace.apply(Service::new(service)).await?;
            let slice = Slice::new(&format!("{service}-a"), service);
            namespace.apply(slice.ready("a", [10, 37, net, address])).await?;
        }
        let replica = Options::new(kubeconfig).start_ready().await?;
        let address = |last: u8| format!("10.37.{net}.{last}");
        replica.answers(&namespace.domain("changing"), "A", &[&address(2)]).await?;
        replica.answers(&namespace.domain("leaving"), "A", &[&address(3)]).await?;
        let witness = Witness::of(replica.dns(), &namespace.domain("steady"), "A", &[&address(1)]);
        Ok(Self { net, proxy, namespace, replica, witness })
    }

    fn address(&self, last: u8) -> String {
        format!("10.37.{}.{last}", self.net)
    }

    /// Makes changes that the replica cannot see at the moment: another address, a deleted service,
    /// a deleted slice, and a new service.
    async fn change(&self) -> Result<()> {
        let namespace = &self.namespace;
        namespace.apply(Slice::new("changing-a", "changing").ready("a", [10, 37, self.net, 22])).await?;
        namespace.delete(SERVICE, "leaving").await?;
        namespace.delete(SLICE, "leaving-a").await?;
        namespace.apply(Service::new("coming")).await?;
        namespace.apply(Slice::new("coming-a", "coming").ready("a", [10, 37, self.net, 4])).await?;
        Ok(())
    }

    /// Waits until the replica's answers reflect [`change`](Self::change).
    async fn caught_up(&self) -> Result<()> {
        let (replica, namespace) = (&self.replica, &self.namespace);
        replica.answers(&namespace.domain("changing"), "A", &[&self.address(22)]).await?;
        replica.answers(&namespace.domain("coming"), "A", &[&self.address(4)]).await?;
        replica.answers(&namespace.domain("leaving"), "A", &[]).await?;
        replica.answers(&format!("3.{}.37.10.in-addr.arpa", self.net), "PTR", &[]).await
    }

    /// Fails unless the replica still gives the last known answers, and no new ones.
    async fn check_unchanged(&self) -> Result<()> {
        for (service, data) in [("changing", self.address(2)), ("leaving", self.address(3))] {
            let reply = self.replica.ask(&self.namespace.domain(service), "A").await?;
            ensure!(reply.data() == [data], "{service}:\n{}", reply.text(""));
        }
        let reply = self.replica.ask(&self.namespace.domain("coming"), "A").await?;
        ensure!(reply.rcode() == "NXDOMAIN", "coming:\n{}", reply.text(""));
        // A replica that is not ready would get no queries at all.
        let (status, body) = self.replica.readyz().await?;
        ensure!(status.is_success(), "/readyz: {status}: {body}");
        Ok(())
    }

    /// Ends the test. Fails if the service that does not change got a wrong answer at any time.
    async fn finish(self) -> Result<()> {
        self.witness.stop().await
    }
}

#[tokio::test]
async fn answers_survive_a_restart_of_the_api_server() -> Result<()> {
    let mut cluster = own_cluster().await?;
    let stage = Stage::start(&cluster, 0).await?;
    cluster.kill_apiserver()?;
    stage.check_unchanged().await?;
    cluster.start_apiserver().await?;
    stage.check_unchanged().await?;
    stage.change().await?;
    stage.caught_up().await?;
    stage.finish().await
}

#[tokio::test]
async fn answers_survive_a_restart_of_etcd() -> Result<()> {
    let mut cluster = own_cluster().await?;
    let stage = Stage::start(&cluster, 0).await?;
    cluster.kill_etcd()?;
    stage.check_unchanged().await?;
    cluster.start_etcd().await?;
    cluster.compact_etcd().await?;
    stage.check_unchanged().await?;
    eventually("the API server to write again", BOUND, async || cluster.temp_namespace("probe").await)
        .await?;
    stage.change().await?;
    stage.caught_up().await?;
    stage.finish().await
}

#[tokio::test]
async fn an_expired_revision_causes_new_lists() -> Result<()> {
    let mut cluster = own_cluster().await?;
    let stage = Stage::start(&cluster, 0).await?;
    let services = cluster.objects().await?.api(&types(SERVICE), None).await?;
    let known = services.list(&ListParams::default()).await?;
    let known = known.metadata.resource_version.context("a list without resourceVersion")?;

    stage.proxy.set(Link::Reset);
    stage.change().await?;
    cluster.compact_etcd().await?;
    cluster.kill_apiserver()?;
    cluster.kill_etcd()?;
    cluster.start_etcd().await?;
    cluster.start_apiserver().await?;
    stage.check_unchanged().await?;

    // A watch from the old revision now fails, as the replica's watches will.
    let services = cluster.objects().await?.api(&types(SERVICE), None).await?;
    let mut watch = services.watch(&WatchParams::default(), &known).await?.boxed();
    let event = watch.next().await.context("the watch ended")?;
    ensure!(
        matches!(&event, Ok(WatchEvent::Error(status)) if status.code == 410)
            || matches!(&event, Err(kube::Error::Api(status)) if status.code == 410),
        "the old revision is not gone: {event:?}"
    );
    drop(watch);

    let relists = stage.replica.metric("multinet_watch_relists_total").await?;
    stage.proxy.set(Link::Up);
    stage.caught_up().await?;
    let more = stage.replica.metric("multinet_watch_relists_total").await? - relists;
    ensure!(more >= 2, "{more} lists for two kinds");
    stage.finish().await
}

#[tokio::test]
async fn answers_survive_a_withdrawn_permission() -> Result<()> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace("faults").await?;
    let account = Account::new(cluster, &namespace).await?;
    account.permit().await?;
    let proxy = Proxy::start(cluster.address()).await?;
    let kubeconfig = account.kubeconfig(proxy.address()).await?;
    let stage = Stage::start_for(namespace, proxy, &kubeconfig, 1).await?;
    account.forbid().await?;
    // The API server does not end open watches when a permission is withdrawn.
    stage.proxy.set(Link::Reset);
    stage.proxy.set(Link::Up);
    eventually("both watches to be forbidden", BOUND, async || {
        for kind in ["MultiNetworkService", "MultiNetworkEndpointSlice"] {
            let errors = format!("multinet_watch_errors_total{{kind=\"{kind}\",reason=\"forbidden\"}}");
            ensure!(stage.replica.metric(&errors).await? >= 1, "no watch of {kind} has failed yet");
        }
        Ok(())
    })
    .await?;
    stage.change().await?;
    stage.check_unchanged().await?;
    account.permit().await?;
    stage.caught_up().await?;
    stage.finish().await
}

#[tokio::test]
async fn answers_survive_a_silent_network_outage() -> Result<()> {
    let stage = Stage::start(shared::cluster().await?, 2).await?;
    stage.proxy.set(Link::Silent);
    stage.change().await?;
    stage.check_unchanged().await?;
    stage.proxy.set(Link::Up);
    stage.caught_up().await?;
    stage.finish().await
}

#[tokio::test]
async fn answers_survive_a_network_that_forgets_its_connections() -> Result<()> {
    let stage = Stage::start(shared::cluster().await?, 3).await?;
    stage.proxy.set(Link::Silent);
    stage.change().await?;
    stage.check_unchanged().await?;
    // This is the effect of a replaced NAT or load balancer between replica and API server.
    stage.proxy.set(Link::Reset);
    stage.check_unchanged().await?;
    stage.proxy.set(Link::Up);
    stage.caught_up().await?;
    stage.finish().await
}

#[tokio::test]
async fn a_dead_connection_to_the_api_server_is_replaced() -> Result<()> {
    let stage = Stage::start(shared::cluster().await?, 4).await?;
    // The connections are dead without an error. The replica notices only that no data arrives.
    stage.proxy.strand();
    stage.change().await?;
    stage.check_unchanged().await?;
    stage.caught_up().await?;
    stage.finish().await
}
