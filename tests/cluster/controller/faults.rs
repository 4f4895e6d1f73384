//! Faults while pods are created, changed and deleted: of the controller, its network, the API
//! server, etcd, and the slices themselves. No address that stays ready is ever missing in DNS,
//! only leaders write, and in the end slices and DNS match the pods.

mod asker;
mod audit;
mod churn;
mod model;
mod random;
mod rig;
mod spoiler;

use std::time::Duration;

use anyhow::{Result, ensure};
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::proxy::{Link, Proxy};
use multinet_testing::replica::BOUND;
use multinet_testing::wait::eventually;
use tokio::time::sleep;

use self::audit::{Audit, GivenUp};
use self::churn::Churn;
use self::rig::{Rig, options};
use crate::roles::{NAMESPACE, Roles};

#[tokio::test]
async fn ready_addresses_survive_kills_of_the_controller_and_edits_of_its_slices() -> Result<()> {
    kill_the_controller_while_slices_are_edited(2).await
}

#[tokio::test]
#[ignore = "make soak"]
async fn soak_ready_addresses_survive_kills_of_the_controller_and_edits_of_its_slices() -> Result<()> {
    kill_the_controller_while_slices_are_edited(20).await
}

async fn kill_the_controller_while_slices_are_edited(times: usize) -> Result<()> {
    let (mut rig, worker) = Rig::start(&[]).await?;
    let options = rig.controller().await?;
    let mut controller = options.start_ready().await?;
    let (asker, churn, spoiler) = (rig.ask()?, Churn::begin(worker), rig.spoil()?);
    for kill in 0..times {
        // Every other kill comes before the controller leads.
        if kill % 2 == 0 {
            controller.leads(true).await?;
        }
        sleep(rig.random.milliseconds(1500)).await;
        controller.kill()?;
        controller = options.start().await?;
    }
    controller.leads(true).await?;
    spoiler.end().await?;
    rig.converges(churn).await?;
    asker.stop().await?;
    controller.kill()?;
    rig.restart_writes_nothing(&options).await.map(drop)
}

/// Lease duration in tests that wait for the lease to expire.
const LEASE: &str = "3s";

/// One of two controllers, with its own ServiceAccount and its own network to the API server.
struct Side {
    account: &'static str,
    proxy: Proxy,
    options: ControllerOptions,
    controller: Controller,
}

impl Side {
    async fn start(rig: &Rig, account: &'static str) -> Result<Self> {
        Roles::of_controller()?.of_account(account).apply(&rig.cluster.objects().await?).await?;
        let proxy = Proxy::start(rig.cluster.address()).await?;
        let kubeconfig = rig.cluster.service_account_kubeconfig(NAMESPACE, account, proxy.address()).await?;
        let options = options(&kubeconfig).flag("--identity", account);
        let controller = options.clone().flag("--lease-duration", LEASE).start_ready().await?;
        Ok(Self { account, proxy, options, controller })
    }

    async fn leads(&self) -> Result<()> {
        self.controller.leads(true).await
    }

    /// Returns the numbers of writes that it has abandoned so far because it lost the lease.
    async fn gave_up(&self) -> Result<GivenUp> {
        let given_up = r#"{kind="MultiNetworkService",verb="apply",result="given_up"}"#;
        let statuses = self.controller.metric(&format!("multinet_controller_writes_total{given_up}")).await?;
        let events = self.controller.metric("multinet_controller_lost_events_total").await?;
        Ok(GivenUp { account: self.account, statuses, events })
    }
}

/// Fault in the network of a leader, by the fate of its pending requests.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// The requests arrive late.
    Late,
    /// Streams are reset.
    Reset,
    /// The requests are lost without an error.
    Lost,
}

#[tokio::test]
async fn only_the_lease_holder_writes_while_leaders_are_cut_off() -> Result<()> {
    let audit = Audit::new()?;
    let flags = audit.flags();
    let (mut rig, worker) = Rig::start(&flags.each_ref().map(String::as_str)).await?;
    let mut leader = Side::start(&rig, "replica-a").await?;
    leader.leads().await?;
    let mut standby = Side::start(&rig, "replica-b").await?;
    let (asker, churn) = (rig.ask()?, Churn::begin(worker));
    let mut late = Vec::new();
    for cut in [Cut::Late, Cut::Reset, Cut::Lost] {
        sleep(rig.random.while_pods_change()).await;
        leader.proxy.set(if matches!(cut, Cut::Reset) { Link::Reset } else { Link::Silent });
        standby.leads().await?;
        // The leader notices the loss of its lease without the API server.
        leader.controller.leads(false).await?;
        sleep(rig.random.while_pods_change()).await;
        match cut {
            // Only the requests that are pending now may still arrive.
            Cut::Late => late.push(leader.gave_up().await?),
            Cut::Reset => {}
            Cut::Lost => leader.proxy.strand(),
        }
        leader.proxy.set(Link::Up);
        (leader, standby) = (standby, leader);
        eprintln!("{cut:?}: {} leads", leader.account);
    }

    // A controller that ends gracefully releases the lease, so that the other one need not wait
    // even for a long lease duration.
    for side in [&mut standby, &mut leader] {
        ensure!(side.controller.terminate().await?.success(), "no graceful end");
        side.options = side.options.clone().flag("--lease-duration", "30s");
    }
    leader.controller = leader.options.start_ready().await?;
    leader.leads().await?;
    standby.controller = standby.options.start_ready().await?;
    ensure!(leader.controller.terminate().await?.success(), "no graceful end");
    ensure!(leader.controller.log().contains("released the lease"), "the lease was not released");
    eventually("the standby to lead", Duration::from_secs(20), async || {
        ensure!(standby.controller.is_leader().await?, "it does not lead");
        Ok(())
    })
    .await?;
    rig.converges(churn).await?;
    let changes = audit.only_holders_wrote(&["replica-a", "replica-b"], late)?;
    ensure!(changes >= 4, "the holder of the lease changed {changes} times");
    asker.stop().await
}

#[tokio::test]
async fn a_standby_with_dead_watches_takes_over() -> Result<()> {
    let (mut rig, worker) = Rig::start(&[]).await?;
    let mut leader = Side::start(&rig, "replica-a").await?;
    leader.leads().await?;
    let standby = Side::start(&rig, "replica-b").await?;
    let (asker, churn) = (rig.ask()?, Churn::begin(worker));
    sleep(rig.random.while_pods_change()).await;
    // The streams of the standby's watches are dead. It has not noticed that yet when the leader is
    // killed.
    standby.proxy.strand();
    sleep(rig.random.while_pods_change()).await;
    leader.controller.kill()?;
    standby.leads().await?;
    rig.converges(churn).await?;
    asker.stop().await
}

/// Duration of the outage of etcd, longer than the lease.
const AWAY: Duration = Duration::from_secs(6);

#[tokio::test]
async fn ready_addresses_survive_outages_of_the_control_plane() -> Result<()> {
    let (mut rig, worker) = Rig::start(&[]).await?;
    let options = rig.controller().await?.flag("--lease-duration", LEASE);
    let mut controller = options.start_ready().await?;
    let (asker, churn) = (rig.ask()?, Churn::begin(worker));
    controller.leads(true).await?;

    sleep(rig.random.while_pods_change()).await;
    rig.cluster.kill_apiserver()?;
    sleep(rig.random.while_pods_change()).await;
    rig.cluster.start_apiserver().await?;
    sleep(rig.random.while_pods_change()).await;
    let worker = rig.converges(churn).await?;

    let churn = Churn::begin(worker);
    sleep(rig.random.while_pods_change()).await;
    rig.cluster.kill_etcd()?;
    sleep(AWAY).await;
    rig.cluster.start_etcd().await?;
    eventually("the API server to write again", BOUND, async || rig.cluster.temp_namespace("probe").await)
        .await?;
    controller.leads(true).await?;
    sleep(rig.random.while_pods_change()).await;
    rig.converges(churn).await?;
    asker.stop().await?;
    controller.kill()?;
    rig.restart_writes_nothing(&options).await.map(drop)
}
