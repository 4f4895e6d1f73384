//! A write there, one back, and again.
//!
//! Each side waits until the last byte of the other's message is there, as `ib_write_lat` does: that costs the device nothing beside the
//! write. Where a message lies in a GPU, its processor would have to be asked for that byte again and again, so writes have
//! immediates then, and the device tells of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use multinet_client::verbs::{Landing, Pair, Region};

use super::super::Extent;
use super::super::figures::Latency;
use super::{Connected, RECEIVED, succeeded};

/// How long an answer may take.
const HUNG: Duration = Duration::from_secs(30);

/// How many round trips come before those that count.
const WARM_UP: u64 = 10;

/// Number of our own writes.
const WRITTEN: u64 = 0;

/// So often it looks for the other side's message before it looks for failures.
const LOOKS: u32 = 256;

/// So often it looks for both in vain before it looks at the clock.
const IN_VAIN: u32 = 1024;

/// One side: writes, and waits to be written to, in turn.
struct Turns<'c> {
    connected: &'c Connected,
    pair: &'c Pair,
    sign: Sign<'c>,
    /// How often it has been written to.
    heard: u8,
}

/// By what a side notices that it has been written to.
enum Sign<'c> {
    /// The last byte of a message, at this offset, is the message's number.
    LastByte(&'c Region, &'c Landing, usize),
    Immediate,
}

/// The client's side.
pub(super) fn measure(connected: &Connected, extent: Extent) -> anyhow::Result<Latency> {
    let (count, time) = match extent {
        Extent::Count(count) => (count, Duration::MAX),
        Extent::Time(time) => (u64::MAX, time),
    };
    let mut turns = Turns::new(connected)?;
    for _ in 0..WARM_UP {
        turns.there_and_back()?;
    }
    let (mut round_trips, begin) = (Vec::new(), Instant::now());
    let mut last = begin;
    while (round_trips.len() as u64) < count && last - begin < time {
        turns.there_and_back()?;
        // One look at the clock each: in a virtual machine it may take as long as a message.
        let now = Instant::now();
        round_trips.push(now - last);
        last = now;
    }
    Latency::of(connected.size, round_trips).context("no round trip was measured")
}

/// The server's side, until it is to stop.
pub(super) fn echo(connected: &Connected, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut turns = Turns::new(connected)?;
    while !stop.load(Ordering::Relaxed) {
        if turns.is_written_to()? {
            // The number of this message: it has been counted already.
            turns.write(turns.heard)?;
        }
    }
    Ok(())
}

impl<'c> Turns<'c> {
    fn new(connected: &'c Connected) -> anyhow::Result<Self> {
        let pair = connected.pairs.first().context("there is no queue pair")?;
        let machine = connected.buffers.machine().filter(|_| connected.is_theirs_machine);
        let last = (connected.size as usize).saturating_sub(1);
        let sign = machine.map_or(Sign::Immediate, |(region, landing)| Sign::LastByte(region, landing, last));
        Ok(Self { connected, pair, sign, heard: 0 })
    }

    fn there_and_back(&mut self) -> anyhow::Result<()> {
        self.write(self.heard.wrapping_add(1))?;
        let (mut vain, mut begin) = (0_u32, None);
        while !self.is_written_to()? {
            vain = vain.wrapping_add(1);
            if vain.is_multiple_of(IN_VAIN) {
                let begin = begin.get_or_insert_with(Instant::now);
                ensure!(begin.elapsed() < HUNG, "no answer for {} s", HUNG.as_secs());
            }
        }
        Ok(())
    }

    /// Writes the message with this number.
    fn write(&self, number: u8) -> anyhow::Result<()> {
        let message = |immediate| self.connected.message(WRITTEN, immediate, true);
        match self.sign {
            Sign::Immediate => Ok(self.pair.write(&[message(Some(0))])?),
            Sign::LastByte(region, _, last) => {
                region.write(last, &[number])?;
                self.pair.write(&[message(None)])?;
                // That of the write before, while this one is under way.
                self.take_completion()
            }
        }
    }

    /// Whether the other side has written, since this was asked last.
    fn is_written_to(&mut self) -> anyhow::Result<bool> {
        let is_written_to = match self.sign {
            Sign::Immediate => self.is_told()?,
            Sign::LastByte(_, landing, last) => self.sees(landing, last)?,
        };
        self.heard = self.heard.wrapping_add(is_written_to.into());
        Ok(is_written_to)
    }

    fn sees(&self, landing: &Landing, last: usize) -> anyhow::Result<bool> {
        let next = self.heard.wrapping_add(1);
        for _ in 0..LOOKS {
            if landing.look(last)? == next {
                return Ok(true);
            }
        }
        self.take_completion()?;
        // The device's driver may need this processor.
        yield_now();
        Ok(false)
    }

    /// Of one of our own writes, if one has been done, or has failed.
    fn take_completion(&self) -> anyhow::Result<()> {
        let Some(completion) = self.connected.queue.poll()? else { return Ok(()) };
        succeeded(completion).map(drop)
    }

    fn is_told(&self) -> anyhow::Result<bool> {
        let Some(completion) = self.connected.queue.poll()? else {
            yield_now();
            return Ok(false);
        };
        let is_theirs = succeeded(completion)?.id == RECEIVED;
        if is_theirs {
            self.pair.receive(RECEIVED)?;
        }
        Ok(is_theirs)
    }
}
