//! Objects that our CustomResourceDefinitions would not let in, as an older or a looser version of them may have.

use anyhow::{Result, ensure};
use kube::api::DynamicObject;
use multinet_testing::manifests::{Service, Slice};
use multinet_testing::replica::{BOUND, Options, Replica};
use multinet_testing::wait::eventually;
use serde_json::json;

use crate::shared;

/// A slice whose endpoints are no list.
fn nonsense(name: &str, service: &str) -> DynamicObject {
    let mut slice = DynamicObject::from(Slice::new(name, service));
    slice.data["spec"]["endpoints"] = json!("as many as you like");
    slice
}

/// Waits until so many objects are counted as undecodable, and named in the log.
async fn complains(replica: &Replica, names: &[&str]) -> Result<()> {
    eventually(&format!("a complaint about {names:?}"), BOUND, async || {
        let count = replica.metric("multinet_watch_undecodable_objects").await?;
        ensure!(count == names.len() as u64, "{count} objects are counted");
        let log = replica.log();
        for name in names {
            ensure!(log.contains(name), "the log does not name {name}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn one_bad_object_does_not_cost_the_others() -> Result<()> {
    let (_guard, cluster) = shared::older_alone().await?;
    let namespace = cluster.temp_namespace("undecodable").await?;
    for (service, address) in [("good", 1), ("turning", 2), ("bad", 3)] {
        namespace.apply(Service::new(service)).await?;
        if service != "bad" {
            namespace
                .apply(Slice::new(&format!("{service}-a"), service).ready("a", [10, 20, 0, address]))
                .await?;
        }
    }
    namespace.apply(nonsense("bad-a", "bad")).await?;
    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let replica = Options::new(&kubeconfig).start_ready().await?;
    replica.answers(&namespace.domain("good"), "A", &["10.20.0.1"]).await?;
    replica.answers(&namespace.domain("turning"), "A", &["10.20.0.2"]).await?;
    replica.answers(&namespace.domain("bad"), "A", &[]).await?;
    complains(&replica, &["bad-a"]).await?;

    // The last version that made sense stays in use, and the watch goes on.
    namespace.apply(nonsense("turning-a", "turning")).await?;
    complains(&replica, &["bad-a", "turning-a"]).await?;
    namespace.apply(Slice::new("good-a", "good").ready("a", [10, 20, 0, 11])).await?;
    replica.answers(&namespace.domain("good"), "A", &["10.20.0.11"]).await?;
    replica.answers(&namespace.domain("turning"), "A", &["10.20.0.2"]).await?;

    for (slice, service, address) in [("turning-a", "turning", 22), ("bad-a", "bad", 33)] {
        namespace.apply(Slice::new(slice, service).ready("a", [10, 20, 0, address])).await?;
        replica.answers(&namespace.domain(service), "A", &[&format!("10.20.0.{address}")]).await?;
    }
    complains(&replica, &[]).await
}
