//! The control plane breaks while `multinet-dns` serves: what it knew goes on being answered,
//! nothing wrong is answered in between, and it catches up.

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

/// A control plane to break.
async fn own_cluster() -> Result<Cluster> {
    let cluster = Cluster::start().await?;
    cluster.apply_crds().await?;
    cluster.apply_rbac().await?;
    Ok(cluster)
}

/// A replica that sees a cluster through a proxy, and services: some that are changed, and one that
/// is not, so that its answer must never change.
struct Stage {
    /// The third byte of the addresses, for tests that share a cluster.
    net: u8,
    proxy: Proxy,
    namespace: Namespace,
    replica: Replica,
    witness: Witness,
}

impl Stage {
    /// Sets it in a namespace of a cluster.
    async fn set(cluster: &Cluster, net: u8) -> Result<Self> {
        let namespace = cluster.temp_namespace("faults").await?;
        let proxy = Proxy::start(cluster.address()).await?;
        let kubeconfig = cluster.dns_server_kubeconfig(proxy.address()).await?;
        Self::set_for(namespace, proxy, &kubeconfig, net).await
    }

    /// The same, with the account that a kubeconfig file names.
    async fn set_for(namespace: Namespace, proxy: Proxy, kubeconfig: &Path, net: u8) -> Result<Self> {
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

    /// Changes what a replica cannot see at the moment: an address, a service that goes, a slice
    /// that goes from another one, and a new service.
    async fn change(&self) -> Result<()> {
        let namespace = &self.namespace;
        namespace.apply(Slice::new("changing-a", "changing").ready("a", [10, 37, self.net, 22])).await?;
        namespace.delete(SERVICE, "leaving").await?;
        namespace.delete(SLICE, "leaving-a").await?;
        namespace.apply(Service::new("coming")).await?;
        namespace.apply(Slice::new("coming-a", "coming").ready("a", [10, 37, self.net, 4])).await?;
        Ok(())
    }

    /// Waits until the replica answers what [`change`](Self::change) made.
    async fn caught_up(&self) -> Result<()> {
        let (replica, namespace) = (&self.replica, &self.namespace);
        replica.answers(&namespace.domain("changing"), "A", &[&self.address(22)]).await?;
        replica.answers(&namespace.domain("coming"), "A", &[&self.address(4)]).await?;
        replica.answers(&namespace.domain("leaving"), "A", &[]).await?;
        replica.answers(&format!("3.{}.37.10.in-addr.arpa", self.net), "PTR", &[]).await
    }

    /// The last known answers are still there, and there is no other.
    async fn as_before(&self) -> Result<()> {
        for (service, data) in [("changing", self.address(2)), ("leaving", self.address(3))] {
            let reply = self.replica.ask(&self.namespace.domain(service), "A").await?;
            ensure!(reply.data() == [data], "{service}:\n{}", reply.text(""));
        }
        let reply = self.replica.ask(&self.namespace.domain("coming"), "A").await?;
        ensure!(reply.rcode() == "NXDOMAIN", "coming:\n{}", reply.text(""));
        // A replica that were not ready would get no queries at all.
        let (status, body) = self.replica.readyz().await?;
        ensure!(status.is_success(), "/readyz: {status}: {body}");
        Ok(())
    }

    /// The end of every test: the steady service was answered rightly all the time.
    async fn clear(self) -> Result<()> {
        self.witness.was_content().await
    }
}

#[tokio::test]
async fn api_server_is_killed_and_restarted() -> Result<()> {
    let mut cluster = own_cluster().await?;
    let stage = Stage::set(&cluster, 0).await?;
    cluster.kill_apiserver()?;
    stage.as_before().await?;
    cluster.start_apiserver().await?;
    stage.as_before().await?;
    stage.change().await?;
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn etcd_is_killed_and_restarted() -> Result<()> {
    let mut cluster = own_cluster().await?;
    let stage = Stage::set(&cluster, 0).await?;
    cluster.kill_etcd()?;
    stage.as_before().await?;
    cluster.start_etcd().await?;
    cluster.compact_etcd().await?;
    stage.as_before().await?;
    eventually("the API server to write again", BOUND, async || cluster.temp_namespace("probe").await)
        .await?;
    stage.change().await?;
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn watches_find_their_revision_gone() -> Result<()> {
    let mut cluster = own_cluster().await?;
    let stage = Stage::set(&cluster, 0).await?;
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
    stage.as_before().await?;

    // This is what the replica is about to see.
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
    stage.clear().await
}

#[tokio::test]
async fn permission_is_withdrawn_and_given_back() -> Result<()> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace("faults").await?;
    let account = Account::new(cluster, &namespace).await?;
    account.permit().await?;
    let proxy = Proxy::start(cluster.address()).await?;
    let kubeconfig = account.kubeconfig(proxy.address()).await?;
    let stage = Stage::set_for(namespace, proxy, &kubeconfig, 1).await?;
    account.forbid().await?;
    // A watch that is open stays allowed.
    stage.proxy.set(Link::Reset);
    stage.proxy.set(Link::Up);
    eventually("both watches to be forbidden", BOUND, async || {
        for kind in ["MultiNetworkService", "MultiNetworkEndpointSlice"] {
            let errors = format!("multinet_watch_errors_total{{kind=\"{kind}\",reason=\"forbidden\"}}");
            ensure!(stage.replica.metric(&errors).await? >= 1, "{kind} is still watched");
        }
        Ok(())
    })
    .await?;
    stage.change().await?;
    stage.as_before().await?;
    account.permit().await?;
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn network_is_cut_silently() -> Result<()> {
    let stage = Stage::set(shared::cluster().await?, 2).await?;
    stage.proxy.set(Link::Silent);
    stage.change().await?;
    stage.as_before().await?;
    stage.proxy.set(Link::Up);
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn network_is_cut_and_forgets_its_connections() -> Result<()> {
    let stage = Stage::set(shared::cluster().await?, 3).await?;
    stage.proxy.set(Link::Silent);
    stage.change().await?;
    stage.as_before().await?;
    // As when a NAT or a load balancer on the way was replaced.
    stage.proxy.set(Link::Reset);
    stage.as_before().await?;
    stage.proxy.set(Link::Up);
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn api_server_loses_its_power() -> Result<()> {
    let stage = Stage::set(shared::cluster().await?, 4).await?;
    // The connections are dead without an error. Only the lack of data shows it.
    stage.proxy.strand();
    stage.change().await?;
    stage.as_before().await?;
    stage.caught_up().await?;
    stage.clear().await
}
