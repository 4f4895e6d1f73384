//! The control plane breaks while `multinet-dns` serves: what it knew goes on being answered, nothing wrong is answered
//! in between, and it catches up.

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::core::TypeMeta;
use multinet_testing::cluster::Cluster;
use multinet_testing::manifests::{SERVICE, SLICE, Service, Slice, types};
use multinet_testing::objects::Namespace;
use multinet_testing::proxy::{Link, Proxy};
use multinet_testing::replica::{BOUND, Options, Replica};
use multinet_testing::wait::eventually;
use multinet_testing::witness::Witness;

/// A cluster to break, a replica that sees it through a proxy, and two services: one that is changed, and one that nobody
/// touches, so that its answer must never change.
struct Stage {
    cluster: Cluster,
    proxy: Proxy,
    namespace: Namespace,
    replica: Replica,
    witness: Witness,
}

impl Stage {
    async fn set() -> Result<Self> {
        let cluster = Cluster::start().await?;
        cluster.apply_crds().await?;
        cluster.apply_rbac().await?;
        let namespace = cluster.temp_namespace("faults").await?;
        for (service, address) in [("steady", 1), ("changing", 2), ("leaving", 3)] {
            namespace.apply(Service::new(service)).await?;
            namespace
                .apply(Slice::new(&format!("{service}-a"), service).ready("a", [10, 7, 0, address]))
                .await?;
        }
        let proxy = Proxy::start(cluster.address()).await?;
        let kubeconfig = cluster.dns_server_kubeconfig(proxy.address()).await?;
        let replica = Options::new(&kubeconfig).start_ready().await?;
        replica.answers(&namespace.domain("changing"), "A", &["10.7.0.2"]).await?;
        replica.answers(&namespace.domain("leaving"), "A", &["10.7.0.3"]).await?;
        let witness = Witness::of(replica.dns(), &namespace.domain("steady"), "A", &["10.7.0.1"]);
        Ok(Self { cluster, proxy, namespace, replica, witness })
    }

    /// Changes what a replica cannot see at the moment: an address, a service that goes, a slice that goes from another
    /// one, and a new service.
    async fn change(&self) -> Result<()> {
        let namespace = &self.namespace;
        namespace.apply(Slice::new("changing-a", "changing").ready("a", [10, 7, 0, 22])).await?;
        namespace.delete(SERVICE, "leaving").await?;
        namespace.delete(SLICE, "leaving-a").await?;
        namespace.apply(Service::new("coming")).await?;
        namespace.apply(Slice::new("coming-a", "coming").ready("a", [10, 7, 0, 4])).await?;
        Ok(())
    }

    /// Waits until the replica answers what [`change`](Self::change) made.
    async fn caught_up(&self) -> Result<()> {
        let (replica, namespace) = (&self.replica, &self.namespace);
        replica.answers(&namespace.domain("changing"), "A", &["10.7.0.22"]).await?;
        replica.answers(&namespace.domain("coming"), "A", &["10.7.0.4"]).await?;
        replica.answers(&namespace.domain("leaving"), "A", &[]).await?;
        replica.answers("3.0.7.10.in-addr.arpa", "PTR", &[]).await
    }

    /// The last known answers are still there, and there is no other.
    async fn as_before(&self) -> Result<()> {
        for (service, data) in [("changing", "10.7.0.2"), ("leaving", "10.7.0.3")] {
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
    let mut stage = Stage::set().await?;
    stage.cluster.kill_apiserver()?;
    stage.as_before().await?;
    stage.cluster.start_apiserver().await?;
    stage.as_before().await?;
    stage.change().await?;
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn etcd_is_killed_and_restarted() -> Result<()> {
    let mut stage = Stage::set().await?;
    stage.cluster.kill_etcd()?;
    stage.as_before().await?;
    stage.cluster.start_etcd().await?;
    stage.cluster.compact_etcd().await?;
    stage.as_before().await?;
    eventually("the API server to write again", BOUND, async || stage.cluster.temp_namespace("probe").await)
        .await?;
    stage.change().await?;
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn watches_find_their_revision_gone() -> Result<()> {
    let mut stage = Stage::set().await?;
    let services = stage.cluster.objects().await?.api(&types(SERVICE), None).await?;
    let known = services.list(&ListParams::default()).await?;
    let known = known.metadata.resource_version.context("a list without resourceVersion")?;

    stage.proxy.set(Link::Reset);
    stage.change().await?;
    stage.cluster.compact_etcd().await?;
    stage.cluster.kill_apiserver()?;
    stage.cluster.kill_etcd()?;
    stage.cluster.start_etcd().await?;
    stage.cluster.start_apiserver().await?;
    stage.as_before().await?;

    // This is what the replica is about to see.
    let services = stage.cluster.objects().await?.api(&types(SERVICE), None).await?;
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
    let stage = Stage::set().await?;
    let objects = stage.cluster.objects().await?;
    let types = TypeMeta {
        api_version: "rbac.authorization.k8s.io/v1".to_owned(),
        kind: "ClusterRoleBinding".to_owned(),
    };
    objects.api(&types, None).await?.delete("multinet-dns", &DeleteParams::default()).await?;
    stage.cluster.lets_dns_read(false).await?;
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
    stage.cluster.apply_rbac().await?;
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn network_is_cut_silently() -> Result<()> {
    let stage = Stage::set().await?;
    stage.proxy.set(Link::Silent);
    stage.change().await?;
    stage.as_before().await?;
    stage.proxy.set(Link::Up);
    stage.caught_up().await?;
    stage.clear().await
}

#[tokio::test]
async fn network_is_cut_and_forgets_its_connections() -> Result<()> {
    let stage = Stage::set().await?;
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
    let stage = Stage::set().await?;
    // Nobody ever says that the connections are dead. Only that nothing comes any more can tell.
    stage.proxy.strand();
    stage.change().await?;
    stage.as_before().await?;
    stage.caught_up().await?;
    stage.clear().await
}
