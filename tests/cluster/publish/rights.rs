//! The shipped role is enough, and so are few rights in etcd: TLS with a client's certificate, and
//! a user who may write the prefix and the owner.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use multinet_testing::etcd::Etcd;
use multinet_testing::markdown::metrics;
use multinet_testing::publish::PublisherOptions;
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;
use serde_json::json;

use super::{BOUND, Stage, infer, settled};
use crate::roles::Roles;
use crate::shared;

const COMPONENT: &str = "deploy/kustomize/components/publish/publish-rbac.yaml";

/// The key `/skydns/`, encoded for the gateway, and that behind all keys that begin so.
pub(super) const KEYS: [&str; 2] = ["L3NreWRucy8=", "L3NreWRuczA="];

/// The same for `/multinet/owner/`.
const OWNERS: [&str; 2] = ["L211bHRpbmV0L293bmVyLw==", "L211bHRpbmV0L293bmVyMA=="];

/// Turns on etcd's users: `root`, and `publisher` with rights to the prefix and the owners only.
async fn enable_users(etcd: &Etcd) -> Result<()> {
    let permit = |range: [&str; 2]| json!({"name": "publisher", "perm": {"permType": "READWRITE", "key": range[0], "range_end": range[1]}});
    for (method, body) in [
        ("auth/role/add", json!({"name": "root"})),
        ("auth/user/add", json!({"name": "root", "password": "secret"})),
        ("auth/user/grant", json!({"user": "root", "role": "root"})),
        ("auth/role/add", json!({"name": "publisher"})),
        ("auth/role/grant", permit(KEYS)),
        ("auth/role/grant", permit(OWNERS)),
        ("auth/user/add", json!({"name": "publisher", "password": "hunter2"})),
        ("auth/user/grant", json!({"user": "publisher", "role": "publisher"})),
        ("auth/enable", json!({})),
    ] {
        etcd.post(method, &body).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_shipped_role_and_a_user_of_etcd_with_few_rights_are_enough() -> Result<()> {
    let stage = Stage::start().await?;
    stage.apply(&infer(201)).await?;
    let objects = stage.cluster.objects().await?;
    objects.apply_file(&repository().join(COMPONENT)).await?;
    let kubeconfig = stage
        .cluster
        .service_account_kubeconfig("multinet-system", "multinet-publish", stage.cluster.address())
        .await?;
    enable_users(&stage.etcd).await?;
    let client = stage.etcd.client("publisher")?;
    let password = tempfile::NamedTempFile::new()?;
    std::fs::write(password.path(), "wrong\n")?;
    let publisher = PublisherOptions::publisher(&kubeconfig)
        .flag("--etcd", stage.etcd.secure_url())
        .flag("--etcd-ca", stage.etcd.ca())
        .flag("--etcd-cert", &client.cert)
        .flag("--etcd-key", &client.key)
        .flag("--etcd-user", "publisher")
        .flag("--etcd-password-file", password.path())
        .start_ready()
        .await?;
    eventually("the log to name the remedy", BOUND, async || {
        let log = publisher.log();
        ensure!(log.contains("check --etcd-user and --etcd-password-file"), "{log}");
        Ok(())
    })
    .await?;
    std::fs::write(password.path(), "hunter2\n")?;
    settled(&publisher).await?;
    ensure!(publisher.metric("multinet_publish_keys").await? > 20, "few keys");
    let (_, text) = publisher.get("metrics").await?;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let served: BTreeSet<&str> = types.filter(|name| name.starts_with("multinet_publish_")).collect();
    let page = std::fs::read_to_string(repository().join("docs/publish.md"))?;
    let documented = metrics(&page);
    let documented: BTreeSet<&str> = documented.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(served == documented, "{served:?}, not {documented:?}");
    // The owner is the uid of the namespace kube-system.
    let log = publisher.log();
    ensure!(log.contains("own the prefix"), "{log}");
    Ok(())
}

/// Without any one of the permissions, the publisher does not write, and says why.
#[tokio::test]
async fn every_verb_of_the_role_is_needed() -> Result<()> {
    // Without streamed lists, as before Kubernetes 1.34, so that `list` is used.
    let cluster = shared::older().await?;
    let etcd = Etcd::start().await?;
    let shipped = Roles::shipped("multinet-publish", "components/publish/publish-rbac.yaml")?;
    let permissions = shipped.permissions();
    ensure!(permissions.len() == 8, "{permissions:?}");
    for (number, permission) in permissions.iter().enumerate() {
        let name = format!("publish-{number}");
        let options = shipped.start_without(cluster, permission, &name, PublisherOptions::publisher).await?;
        let mut publisher = options.flag("--etcd", etcd.url()).start().await?;
        // Updating the Lease fails at the second renewal only.
        permission.is_missed(&publisher).await?;
        publisher.kill()?;
    }
    Ok(())
}
