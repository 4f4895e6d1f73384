//! The keys follow the objects: killed at any moment, with etcd away, after changes by others.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::ask::ask_udp;
use multinet_testing::coredns::CoreDns;
use multinet_testing::manifests::SLICE;
use multinet_testing::wait::eventually;
use serde_json::json;
use tokio::time::sleep;

use super::rights::KEYS;
use super::{BOUND, Stage, infer, moving, settled};

const NET: u8 = 181;

/// Number of times that the publisher is killed.
const KILLS: usize = 12;

/// Number of changes between two kills.
const CHANGES: usize = 12;

#[tokio::test]
async fn a_publisher_that_is_killed_at_any_moment_leaves_nothing_wrong_behind() -> Result<()> {
    let stage = Stage::start().await?;
    stage.apply(&infer(NET)).await?;
    let foreign = format!("/skydns/local/cluster/multinet/svc/{}/infer/other", stage.namespace.name());
    stage.etcd.put(&foreign, "{\"host\":\"192.0.2.1\"}").await?;
    // A publisher that restarts under its name gets its Lease back at once.
    let options = stage.publisher().flag("--identity", "publisher-0");
    let mut publisher = options.start().await?;
    for round in 0..KILLS {
        for change in 0..CHANGES {
            // Up to 90 hosts, so that a change takes several transactions.
            let hosts: Vec<usize> = (0..90).filter(|host| (host * 7 + round * 5 + change) % 3 > 0).collect();
            stage.namespace.apply(moving(NET, &hosts)?).await?;
            // Kills fall into all parts of starting, listing and writing.
            if change == round {
                publisher.kill()?;
                publisher = options.start().await?;
            }
        }
    }
    let keys = stage.keys(&stage.etcd).await?;
    ensure!(keys.contains_key(&foreign), "the key of another program is gone");
    stage.etcd.delete(&foreign).await?;
    stage.is_up_to_date().await?;
    let log = publisher.log();
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}

#[tokio::test]
async fn after_random_changes_the_keys_are_those_of_the_slices() -> Result<()> {
    random_changes(200).await
}

#[tokio::test]
#[ignore = "takes minutes: make soak"]
async fn soak_after_a_thousand_random_changes_the_keys_are_those_of_the_slices() -> Result<()> {
    random_changes(1000).await
}

async fn random_changes(count: u32) -> Result<()> {
    let stage = Stage::start().await?;
    stage.apply(&infer(NET + 4)).await?;
    let publisher = stage.publisher().start_ready().await?;
    settled(&publisher).await?;
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut exists = [false; 3];
    for _ in 0..count {
        let number = random.usize(..exists.len());
        let name = format!("infer-moving-{number}");
        if exists[number] && random.u8(..8) == 0 {
            stage.namespace.delete(SLICE, &name).await?;
            exists[number] = false;
            continue;
        }
        let hosts: Vec<usize> = (20 * number..20 * number + 12).filter(|_| random.bool()).collect();
        let mut slice = moving(NET + 4, &hosts)?;
        slice.metadata.name = Some(name);
        stage.namespace.apply(slice).await?;
        exists[number] = true;
    }
    stage.is_up_to_date().await
}

#[tokio::test]
async fn without_etcd_the_publisher_waits_and_then_catches_up() -> Result<()> {
    etcd_is_away(NET + 1, Duration::ZERO).await
}

#[tokio::test]
#[ignore = "takes more than a minute"]
async fn soak_etcd_is_away_for_a_minute() -> Result<()> {
    etcd_is_away(NET + 5, Duration::from_secs(60)).await
}

/// Etcd is away, and objects change meanwhile. Then another program changes keys.
async fn etcd_is_away(net: u8, time: Duration) -> Result<()> {
    let mut stage = Stage::start().await?;
    stage.apply(&infer(net)).await?;
    let publisher = stage.publisher().start_ready().await?;
    settled(&publisher).await?;

    stage.etcd.kill()?;
    sleep(time).await;
    stage.namespace.apply(moving(net, &[1, 2])?).await?;
    publisher.shows("multinet_publish_etcd_connected", 0).await?;
    let (status, body) = publisher.readyz().await?;
    ensure!(status.is_success() && body.contains("etcd: "), "{status}: {body}");
    stage.namespace.apply(moving(net, &[2, 3])?).await?;
    stage.etcd.start_again().await?;
    stage.is_up_to_date().await?;
    let lines = |needle: &str| publisher.log().matches(needle).count();
    ensure!(
        lines("cannot write to etcd, and CoreDNS keeps the keys that it has") == 1,
        "{}",
        publisher.log()
    );
    eventually("the log to say so", BOUND, async || {
        ensure!(lines("etcd is up to date again") == 1, "{}", publisher.log());
        Ok(())
    })
    .await?;

    // Another program changes and deletes keys of ours. The next change finds it out.
    let keys = stage.keys(&stage.etcd).await?;
    let mut ours = keys.keys().filter(|key| key.contains("/h2/"));
    let (one, two) = (ours.next().context("no key")?, ours.next().context("one key")?);
    stage.etcd.delete(one).await?;
    stage.etcd.put(two, keys[one].as_str()).await?;
    stage.namespace.apply(moving(net, &[3, 4])?).await?;
    stage.is_up_to_date().await
}

#[tokio::test]
async fn keys_of_other_programs_are_reported_and_left_alone() -> Result<()> {
    let stage = Stage::start().await?;
    stage.apply(&infer(NET + 2)).await?;
    let namespace = stage.namespace.name();
    let base = format!("/skydns/local/cluster/multinet/svc/{namespace}/infer");
    let taken = format!("{base}/b/10-{}-0-2-80", NET + 2);
    let others = [
        (taken.clone(), "{\"host\":\"192.0.2.7\",\"ttl\":5}"),
        (format!("{base}/broken"), "no JSON"),
        ("/skydns/com/example/x".to_owned(), "{\"host\":\"192.0.2.8\"}"),
        ("/elsewhere".to_owned(), "x"),
    ];
    for (key, value) in &others {
        stage.etcd.put(key, value).await?;
    }
    let publisher = stage.publisher().start_ready().await?;
    settled(&publisher).await?;
    publisher.shows("multinet_publish_blocked_keys", 1).await?;
    let log = publisher.log();
    ensure!(log.contains("another program has keys of names of ours") && log.contains(&taken), "{log}");
    ensure!(log.contains("CoreDNS cannot read the value of this key") && log.contains("/broken"), "{log}");
    let all = stage.etcd.keys("/").await?;
    for (key, value) in &others {
        ensure!(all.get(key).is_some_and(|found| found == value), "{key} is {:?}", all.get(key));
    }

    // So it is: CoreDNS cannot answer. Without the key it does.
    let plugin = format!("etcd {{\n    path /skydns\n    endpoint {}\n  }}", stage.etcd.url());
    let coredns = CoreDns::start(&[("multinet.cluster.local", &plugin)]).await?;
    let name = stage.namespace.domain("infer");
    let reply = ask_udp(coredns.address(), &name, "A").await?;
    ensure!(reply.rcode() == "SERVFAIL", "{}", reply.text(""));
    stage.etcd.delete(&format!("{base}/broken")).await?;
    let reply = ask_udp(coredns.address(), &name, "A").await?;
    ensure!(reply.rcode() == "NOERROR" && !reply.answers().is_empty(), "{}", reply.text(""));

    // No key of ours has a lease, and each has a time to live.
    let body = json!({"key": KEYS[0], "range_end": KEYS[1]});
    let found = stage.etcd.post("kv/range", &body).await?;
    let all = found["kvs"].as_array().context("no keys")?;
    ensure!(all.len() > 20 && all.iter().all(|key| key.get("lease").is_none()), "a lease: {all:?}");
    for (key, value) in stage.keys(&stage.etcd).await?.into_iter().filter(|(key, _)| *key != taken) {
        let value: serde_json::Value = serde_json::from_str(&value)?;
        ensure!(value["ttl"].as_u64() > Some(0), "{key}: {value}");
    }

    // A key that is free again is written at the next list, which a restart begins with.
    stage.etcd.delete(&taken).await?;
    drop(publisher);
    let publisher = stage.publisher().start_ready().await?;
    settled(&publisher).await?;
    stage.is_up_to_date().await
}

/// A standby takes over within a Lease's time, and the former leader's writes change nothing.
#[tokio::test]
async fn a_standby_takes_over() -> Result<()> {
    let stage = Stage::start().await?;
    stage.apply(&infer(NET + 3)).await?;
    let mut first = stage.publisher().start_ready().await?;
    settled(&first).await?;
    let second = stage.publisher().start_ready().await?;
    ensure!(!second.is_leader().await?, "two leaders");
    first.process().signal("STOP")?;
    stage.namespace.apply(moving(NET + 3, &[1])?).await?;
    settled(&second).await?;
    stage.namespace.apply(moving(NET + 3, &[2])?).await?;
    first.process().signal("CONT")?;
    stage.is_up_to_date().await?;
    first.leads(false).await?;
    stage.is_up_to_date().await
}
