//! One sender of each kind of delivery and three receivers, at a steady stream: more come, some die, one is replaced, DNS is away, links are cut.
//!
//! # What "counted exactly" can mean
//!
//! An at-most-once sender counts a frame as lost when its connection broke between the frame's writing and the receiver's word that its code had
//! taken it. Of a frame in that gap nobody can know, at the sender, on which side it fell: the word itself may be lost with
//! the connection. So with `lost` the sender's count and `missing` the frames that no receiver has printed:
//!
//! - `missing <= lost`, but for one frame for each receiver that was killed: the frame that its code had taken, and said so, and had not printed
//!   yet when SIGKILL struck. The sink has one thread and one frame in hand.
//! - `lost <= missing + frames in the gap`, and the gap of a connection is as wide as the receiver has slots, at most. Frames whose taking had been
//!   confirmed are never in it, or each connection's end would count thousands.
//!
//! Where connections end in order, the two are equal: see `orderly`.

use anyhow::{Context as _, Result, ensure};
use multinet_testing::replica::BOUND;

use super::stage::{Stage, strays};
use super::tally::{Status, all_arrived, missing};
use super::vertex::{Record, Sink, Source, carried, watch};

/// The default number of slots of a listener.
const SLOTS: u64 = 16;

/// How many frames the at-least-once sender has to send.
const FRAMES: u64 = 30_000;

/// How many receivers do not get to print the frame that they have in hand.
const KILLED: u64 = 3;

/// What a pod may have carried on its default network beside DNS: neighbour discovery and the like, in bytes.
const SMALL_TALK: u64 = 20_000;

/// Who is still there.
pub(super) struct Cast {
    pub(super) sinks: Vec<Sink>,
    pub(super) once: Source,
    pub(super) kept: Source,
}

pub(super) async fn play(stage: &mut Stage, told: &impl Fn(&str)) -> Result<Cast> {
    let mut gone = Vec::new();
    let mut cast = enter(stage).await?;
    told("three receivers, two senders");
    scale_up(stage, &mut cast).await.context("scaling up")?;
    told("five receivers");
    replace(stage, &mut cast, &mut gone).await.context("replacing one")?;
    told("one was replaced");
    kill_two(&mut cast, &mut gone).await.context("killing two")?;
    told("two were killed");
    restart_dns(stage, &mut cast).await.context("restarting DNS")?;
    told("DNS was away");
    cut_a_sender(&mut cast).await.context("cutting the sender's link")?;
    told("a sender's link was cut");
    cut_a_receiver(&mut cast).await.context("cutting a receiver's link")?;
    told("a receiver's link was cut");
    cast.kept.shows("have sent enough", |status| status.sent >= FRAMES).await?;
    // The connections that end from here on end in order.
    let breaks = cast.once.connected(3).await?.disconnects;
    let once = cast.once.finish().await?;
    let kept = cast.kept.finish().await?;
    for sink in &cast.sinks {
        gone.push(sink.record()?);
    }
    check(&gone, (&once, breaks), &kept)?;
    check_interfaces(&gone, &cast)?;
    let strays = strays()?;
    ensure!(strays == 0, "{strays} packets for the second network were on the default one");
    Ok(cast)
}

async fn enter(stage: &Stage) -> Result<Cast> {
    let mut sinks = Vec::new();
    for name in ["infer-0", "infer-1", "infer-2"] {
        sinks.push(Sink::start(stage, name).await?);
    }
    let mut once = Source::start(stage, "once", "--rate 1000").await?;
    let mut kept = Source::start(stage, "kept", "--at-least-once --rate 3000 --size 64").await?;
    once.connected(3).await?;
    kept.connected(3).await?;
    Ok(Cast { sinks, once, kept })
}

async fn scale_up(stage: &Stage, cast: &mut Cast) -> Result<()> {
    for name in ["infer-3", "infer-4"] {
        cast.sinks.push(Sink::start(stage, name).await?);
    }
    cast.connected(5).await?;
    for sink in &mut cast.sinks {
        sink.has_more_than(100).await?;
    }
    Ok(())
}

/// A node dies without a word, and the pod that comes in its pod's place has the same name and address.
async fn replace(stage: &Stage, cast: &mut Cast, gone: &mut Vec<Record>) -> Result<()> {
    let mut old = cast.sinks.remove(1);
    let (address, uid) = (old.address.clone(), old.uid.clone());
    old.link("down")?;
    old.kill()?;
    gone.push(old.remove().await?);
    let mut new = Sink::start(stage, "infer-1").await?;
    ensure!(new.address == address, "whereabouts gave {}, not {address}", new.address);
    ensure!(new.uid != uid, "two pods with the uid {uid}");
    new.has_more_than(100).await?;
    cast.sinks.push(new);
    cast.connected(5).await
}

/// Two die in the midst of it, at once.
async fn kill_two(cast: &mut Cast, gone: &mut Vec<Record>) -> Result<()> {
    let mut doomed = [cast.sinks.remove(0), cast.sinks.remove(0)];
    doomed.iter_mut().try_for_each(Sink::kill)?;
    for sink in doomed {
        gone.push(sink.remove().await?);
    }
    cast.connected(3).await
}

/// Nobody who is connected needs DNS.
async fn restart_dns(stage: &mut Stage, cast: &mut Cast) -> Result<()> {
    let mut watch = watch(stage, &cast.once)?;
    watch.logged("has 3 endpoints", BOUND).await?;
    let before = cast.once.connected(3).await?;
    stage.kill_dns()?;
    watch.logged("DNS fails", BOUND).await?;
    for source in [&mut cast.once, &mut cast.kept] {
        source.process.logged("the last endpoints are kept", BOUND).await?;
    }
    stage.start_dns().await?;
    watch.logged("DNS answers again", BOUND).await?;
    for source in [&mut cast.once, &mut cast.kept] {
        source.process.logged("DNS answers again", BOUND).await?;
    }
    let after = cast.once.shows("send on", |status| status.sent > before.sent + 1000).await?;
    ensure!(
        (after.lost, after.disconnects, after.connected) == (before.lost, before.disconnects, 3),
        "DNS was away, and {before:?} became {after:?}"
    );
    Ok(())
}

/// The sender's own link goes and comes back. What it sends meanwhile must not take another way.
async fn cut_a_sender(cast: &mut Cast) -> Result<()> {
    for source in [&mut cast.once, &mut cast.kept] {
        source.link("down")?;
        source.stalls().await?;
        source.link("up")?;
    }
    cast.connected(3).await?;
    for sink in &mut cast.sinks {
        let count = sink.count();
        sink.has_more_than(count + 100).await?;
    }
    Ok(())
}

/// A receiver hears nothing for so long that it counts as gone, then comes back.
async fn cut_a_receiver(cast: &mut Cast) -> Result<()> {
    let before = cast.once.connected(3).await?;
    let sink = &mut cast.sinks[0];
    sink.link("down")?;
    for source in [&mut cast.once, &mut cast.kept] {
        source.connected(2).await?;
    }
    sink.link("up")?;
    let count = sink.count();
    cast.connected(3).await?;
    cast.sinks[0].has_more_than(count + 100).await?;
    let after = cast.once.connected(3).await?;
    ensure!(after.disconnects > before.disconnects, "{before:?}, {after:?}");
    Ok(())
}

fn check(records: &[Record], (once, breaks): (&Status, u64), kept: &Status) -> Result<()> {
    let missing = missing(records, "once", once)?;
    eprintln!("at most once: {missing} missing; {breaks} connections broke; {once:?}");
    let gaps = breaks * SLOTS;
    ensure!(missing <= once.lost + KILLED, "{missing} are missing, {} are said to be lost", once.lost);
    ensure!(once.lost <= missing + gaps, "{} are said to be lost, {missing} are missing", once.lost);

    let twice = all_arrived(records, "kept", kept)?;
    eprintln!("at least once: {twice} at more than one receiver; {kept:?}");
    ensure!(kept.sent >= FRAMES && kept.acknowledged == kept.sent, "{kept:?}");
    let marked = records.iter().flat_map(|record| &record.frames).filter(|frame| frame.is_repeat).count();
    ensure!(marked as u64 <= kept.repeats, "{marked} marked as repeats, {} sent again", kept.repeats);
    Ok(())
}

/// What was sent, was sent over the second network.
fn check_interfaces(records: &[Record], cast: &Cast) -> Result<()> {
    for Record { name, default_network, second_network, frames } in records {
        eprintln!("{name}: {} frames, eth0 {default_network}, net1 {second_network} bytes", frames.len());
        ensure!(*default_network < SMALL_TALK, "{name} has had {default_network} bytes on eth0");
        ensure!(*second_network > 64 * frames.len() as u64, "{name} has had {second_network} bytes on net1");
    }
    for source in [&cast.once, &cast.kept] {
        // DNS is asked over the default network.
        let [default_network, second_network] = carried(&source.pod)?;
        eprintln!("a sender: eth0 {default_network}, net1 {second_network} bytes");
        ensure!(
            default_network * 10 < second_network,
            "{default_network} bytes on eth0, {second_network} on net1"
        );
    }
    Ok(())
}

impl Cast {
    async fn connected(&mut self, count: u64) -> Result<()> {
        self.once.connected(count).await?;
        self.kept.connected(count).await?;
        Ok(())
    }
}
