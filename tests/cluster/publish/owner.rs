//! The owner of a prefix: another cluster's publisher changes nothing, unless it takes over.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Stage, infer, settled};

#[tokio::test]
async fn a_prefix_has_one_owner_until_another_takes_over() -> Result<()> {
    let stage = Stage::start().await?;
    stage.apply(&infer(191)).await?;
    // A cluster that is gone has left the keys of a service.
    let mut gone = stage.publisher().flag("--owner", "gone").start_ready().await?;
    settled(&gone).await?;
    let keys = stage.keys(&stage.etcd).await?;
    gone.kill()?;
    let value = keys.values().next().map(String::as_str).unwrap_or_default();
    let left = "/skydns/local/cluster/multinet/svc/gone/left/h/10-0-0-1";
    stage.etcd.put(left, value).await?;
    let foreign = "/skydns/local/cluster/multinet/svc/gone/other";
    stage.etcd.put(foreign, "{\"host\":\"192.0.2.1\"}").await?;

    let before = stage.etcd.keys("/").await?;
    let mut other = stage.publisher().start().await?;
    let status = other.process().exited(Duration::from_secs(60)).await?;
    let log = other.log();
    ensure!(status.code() == Some(2), "{status}: {log}");
    ensure!(
        log.contains("the prefix /skydns in etcd belongs to \"gone\"") && log.contains("--take-over"),
        "{log}"
    );
    ensure!(stage.etcd.keys("/").await? == before, "a refused publisher has changed keys");

    // Another prefix has another owner.
    let elsewhere =
        stage.publisher().flag("--prefix", "/elsewhere").flag("--owner", "us").start_ready().await?;
    settled(&elsewhere).await?;
    drop(elsewhere);

    let options = stage.publisher().flag("--owner", "us").switch("--take-over");
    let mut publisher = options.start_ready().await?;
    settled(&publisher).await?;
    ensure!(publisher.log().contains("took the prefix over"), "{}", publisher.log());
    let all = stage.etcd.keys("/").await?;
    ensure!(all["/multinet/owner/skydns"] == "us" && all["/multinet/owner/elsewhere"] == "us", "{all:?}");
    ensure!(!all.contains_key(left) && all.contains_key(foreign), "{:?}", all.keys());
    stage.is_up_to_date().await?;

    // The owner that is replaced stops at its next change, and does not fight, though it was
    // started again with the flag.
    publisher.process().signal("TERM")?;
    let status = publisher.process().exited(Duration::from_secs(60)).await?;
    ensure!(status.success(), "{status}");
    let mut publisher = options.start_ready().await?;
    settled(&publisher).await?;
    stage.etcd.put("/multinet/owner/skydns", "third").await?;
    stage.namespace.apply(super::moving(191, &[1])?).await?;
    let status = publisher.process().exited(Duration::from_secs(60)).await?;
    ensure!(status.code() == Some(2), "{status}");
    ensure!(publisher.log().contains("belongs to \"third\""), "{}", publisher.log());
    Ok(())
}
