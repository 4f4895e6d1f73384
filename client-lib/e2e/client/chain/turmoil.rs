//! Steady streams from one sender of each kind of delivery to three receivers, through every
//! change: receivers are added, killed and replaced, DNS fails, and links are cut.
//!
//! # Exact counts
//!
//! An at-most-once sender counts a frame as lost if its connection breaks after the frame is
//! written and before the receiver reports that its code has taken it. The sender cannot know
//! whether such a frame was taken, because the report itself may be lost with the connection. Let
//! `lost` be the sender's count, and `missing` the number of frames that no receiver has printed.
//! Then:
//!
//! - `missing <= lost`, apart from one frame per killed receiver: its code had taken the frame and
//!   reported that, but had not printed it before SIGKILL. A sink has one thread and holds one
//!   frame.
//! - `lost <= missing + unreported frames`. A connection has at most as many unreported frames as
//!   the receiver has slots. Frames that were reported as taken are not among them; otherwise each
//!   broken connection would count thousands.
//!
//! If connections end gracefully, both numbers are equal: see `orderly`.

use anyhow::{Context as _, Result, ensure};
use multinet_testing::replica::BOUND;

use super::stage::{Stage, strays};
use super::tally::{Status, all_arrived, missing};
use super::vertex::{Record, Sink, Source, carried, watch};

/// Default number of slots of a listener.
const SLOTS: u64 = 16;

/// Number of frames that the at-least-once sender has to send.
const FRAMES: u64 = 30_000;

/// Number of killed receivers, each of which may not have printed its last frame.
const KILLED: u64 = 3;

/// Largest traffic of a receiver on its default network in bytes, such as neighbour discovery.
const OTHER_TRAFFIC: u64 = 20_000;

/// Programs that still run.
pub(super) struct Programs {
    pub(super) sinks: Vec<Sink>,
    pub(super) once: Source,
    pub(super) kept: Source,
}

/// Runs all changes, and checks the counts. Returns the programs that are left.
pub(super) async fn run(stage: &mut Stage, report: &impl Fn(&str)) -> Result<Programs> {
    let mut gone = Vec::new();
    let mut programs = start(stage).await?;
    report("three receivers and two senders run");
    scale_up(stage, &mut programs).await.context("scaling up")?;
    report("five receivers run");
    replace(stage, &mut programs, &mut gone).await.context("replacing one")?;
    report("a receiver was replaced");
    kill_two(&mut programs, &mut gone).await.context("killing two")?;
    report("two receivers were killed");
    restart_dns(stage, &mut programs).await.context("restarting DNS")?;
    report("DNS was restarted");
    cut_a_sender(&mut programs).await.context("cutting the sender's link")?;
    report("a sender's link was cut");
    cut_a_receiver(&mut programs).await.context("cutting a receiver's link")?;
    report("a receiver's link was cut");
    programs.kept.shows("have sent enough", |status| status.sent >= FRAMES).await?;
    // From here on, connections end gracefully.
    let breaks = programs.once.connected(3).await?.disconnects;
    let once = programs.once.finish().await?;
    let kept = programs.kept.finish().await?;
    for sink in &programs.sinks {
        gone.push(sink.record()?);
    }
    check(&gone, (&once, breaks), &kept)?;
    check_interfaces(&gone, &programs)?;
    let strays = strays()?;
    ensure!(strays == 0, "{strays} packets for the second network left by the default one");
    Ok(programs)
}

async fn start(stage: &Stage) -> Result<Programs> {
    let mut sinks = Vec::new();
    for name in ["infer-0", "infer-1", "infer-2"] {
        sinks.push(Sink::start(stage, name).await?);
    }
    let mut once = Source::start(stage, "once", "--rate 1000").await?;
    let mut kept = Source::start(stage, "kept", "--at-least-once --rate 3000 --size 64").await?;
    once.connected(3).await?;
    kept.connected(3).await?;
    Ok(Programs { sinks, once, kept })
}

async fn scale_up(stage: &Stage, programs: &mut Programs) -> Result<()> {
    for name in ["infer-3", "infer-4"] {
        programs.sinks.push(Sink::start(stage, name).await?);
    }
    programs.connected(5).await?;
    for sink in &mut programs.sinks {
        sink.has_more_than(100).await?;
    }
    Ok(())
}

/// Cuts a receiver off without an error, as if its node died, and starts its replacement with the
/// same name and address.
async fn replace(stage: &Stage, programs: &mut Programs, gone: &mut Vec<Record>) -> Result<()> {
    let mut old = programs.sinks.remove(1);
    let (address, uid) = (old.address.clone(), old.uid.clone());
    old.link("down")?;
    old.kill()?;
    gone.push(old.remove().await?);
    let mut new = Sink::start(stage, "infer-1").await?;
    ensure!(new.address == address, "whereabouts gave {}, not {address}", new.address);
    ensure!(new.uid != uid, "two pods with the uid {uid}");
    new.has_more_than(100).await?;
    programs.sinks.push(new);
    programs.connected(5).await
}

/// Kills two receivers at the same time.
async fn kill_two(programs: &mut Programs, gone: &mut Vec<Record>) -> Result<()> {
    let mut doomed = [programs.sinks.remove(0), programs.sinks.remove(0)];
    doomed.iter_mut().try_for_each(Sink::kill)?;
    for sink in doomed {
        gone.push(sink.remove().await?);
    }
    programs.connected(3).await
}

/// Restarts DNS. Connected programs do not need it.
async fn restart_dns(stage: &mut Stage, programs: &mut Programs) -> Result<()> {
    let mut watch = watch(stage, &programs.once)?;
    watch.logged("has 3 endpoints", BOUND).await?;
    let before = programs.once.connected(3).await?;
    stage.kill_dns()?;
    watch.logged("DNS fails", BOUND).await?;
    for source in [&mut programs.once, &mut programs.kept] {
        source.process.logged("last endpoints are kept", BOUND).await?;
    }
    stage.start_dns().await?;
    watch.logged("DNS answers again", BOUND).await?;
    for source in [&mut programs.once, &mut programs.kept] {
        source.process.logged("DNS answers again", BOUND).await?;
    }
    let after = programs.once.shows("send on", |status| status.sent > before.sent + 1000).await?;
    ensure!(
        (after.lost, after.disconnects, after.connected) == (before.lost, before.disconnects, 3),
        "during the outage of DNS, {before:?} became {after:?}"
    );
    Ok(())
}

/// Cuts each sender's own link for a while. Its packets must not take another route.
async fn cut_a_sender(programs: &mut Programs) -> Result<()> {
    for source in [&mut programs.once, &mut programs.kept] {
        source.link("down")?;
        source.stalls().await?;
        source.link("up")?;
    }
    programs.connected(3).await?;
    for sink in &mut programs.sinks {
        let count = sink.count();
        sink.has_more_than(count + 100).await?;
    }
    Ok(())
}

/// Cuts a receiver's link until the senders have dropped it, and then restores it.
async fn cut_a_receiver(programs: &mut Programs) -> Result<()> {
    let before = programs.once.connected(3).await?;
    let sink = &mut programs.sinks[0];
    sink.link("down")?;
    for source in [&mut programs.once, &mut programs.kept] {
        source.connected(2).await?;
    }
    sink.link("up")?;
    let count = sink.count();
    programs.connected(3).await?;
    programs.sinks[0].has_more_than(count + 100).await?;
    let after = programs.once.connected(3).await?;
    ensure!(after.disconnects > before.disconnects, "{before:?}, {after:?}");
    Ok(())
}

fn check(records: &[Record], (once, breaks): (&Status, u64), kept: &Status) -> Result<()> {
    let missing = missing(records, "once", once)?;
    eprintln!("at most once: {missing} missing; {breaks} connections broke; {once:?}");
    let gaps = breaks * SLOTS;
    ensure!(missing <= once.lost + KILLED, "{missing} frames are missing, but {} were counted", once.lost);
    ensure!(once.lost <= missing + gaps, "{} frames were counted, but {missing} are missing", once.lost);

    let twice = all_arrived(records, "kept", kept)?;
    eprintln!("at least once: {twice} at more than one receiver; {kept:?}");
    ensure!(kept.sent >= FRAMES && kept.acknowledged == kept.sent, "{kept:?}");
    let marked = records.iter().flat_map(|record| &record.frames).filter(|frame| frame.is_repeat).count();
    ensure!(marked as u64 <= kept.repeats, "{marked} frames are marked, but {} were repeated", kept.repeats);
    Ok(())
}

/// Checks that all frames were sent over the second network.
fn check_interfaces(records: &[Record], programs: &Programs) -> Result<()> {
    for Record { name, default_network, second_network, frames } in records {
        eprintln!("{name}: {} frames, eth0 {default_network}, net1 {second_network} bytes", frames.len());
        ensure!(*default_network < OTHER_TRAFFIC, "{name} carried {default_network} bytes on eth0");
        ensure!(*second_network > 64 * frames.len() as u64, "{name} carried {second_network} bytes on net1");
    }
    for source in [&programs.once, &programs.kept] {
        // Senders query DNS over the default network.
        let [default_network, second_network] = carried(&source.pod)?;
        eprintln!("a sender: eth0 {default_network}, net1 {second_network} bytes");
        ensure!(
            default_network * 10 < second_network,
            "{default_network} bytes on eth0, {second_network} on net1"
        );
    }
    Ok(())
}

impl Programs {
    async fn connected(&mut self, count: u64) -> Result<()> {
        self.once.connected(count).await?;
        self.kept.connected(count).await?;
        Ok(())
    }
}
