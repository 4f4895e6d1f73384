//! As many writes as there is room for, and how fast they complete.

use std::time::{Duration, Instant};

use anyhow::ensure;
use multinet_client::verbs::MOST_WRITES;

use super::super::Extent;
use super::super::figures::{Bandwidth, MAX_FOR_PEAK, Times};
use super::{Connected, succeeded};

/// How long nothing may complete before the other side counts as gone: longer than a device repeats what is not acknowledged.
const HUNG: Duration = Duration::from_secs(30);

/// Larger messages get a call and a completion each, as perftest has it. Others share a call, and its last one has the completion.
const LARGE: u32 = 8 << 10;

/// The lower bits of a completion's number: how many of its queue pair's writes are done. The upper ones are the pair.
const COUNT: u32 = 48;

/// Writes of one queue pair.
#[derive(Clone, Default)]
struct Progress {
    posted: u64,
    done: u64,
}

/// Writes messages on all queue pairs, so many on each, with at most `depth` under way on each. It is busy all the time.
pub(super) fn measure(connected: &Connected, extent: Extent, depth: u16) -> anyhow::Result<Bandwidth> {
    let (each, time) = match extent {
        Extent::Count(each) => (each, Duration::MAX),
        Extent::Time(time) => (u64::MAX, time),
    };
    // A call for several, but not so many that the queue runs dry meanwhile.
    let most = if connected.size > LARGE { 1 } else { MOST_WRITES as u64 };
    let batch = u64::from(depth / 2).clamp(1, most);
    let pairs = connected.pairs.len() as u64;
    let (mut times, notes_times) = (Times::default(), each.saturating_mul(pairs) <= MAX_FOR_PEAK);
    let mut progress = vec![Progress::default(); connected.pairs.len()];
    let (mut posted, mut done, mut completions) = (0, 0, Vec::new());
    let (start, mut last) = (Instant::now(), Instant::now());
    loop {
        let goes_on = time == Duration::MAX || start.elapsed() < time;
        for ((number, pair), at) in (0..).zip(&connected.pairs).zip(&mut progress) {
            let left = if goes_on { each - at.posted } else { 0 };
            let count = left.min(batch);
            if count == 0 || at.posted - at.done + count > depth.into() {
                continue;
            }
            let id = (number << COUNT) | (at.posted + count);
            let message = |place| {
                let id = id - (count - 1).saturating_sub(place);
                connected.message(id, None, connected.size > LARGE || place + 1 >= count)
            };
            let writes: [_; MOST_WRITES] = std::array::from_fn(|place| message(place as u64));
            if notes_times {
                times.posted.extend(std::iter::repeat_n(start.elapsed(), count as usize));
            }
            pair.write(&writes[..count as usize])?;
            at.posted += count;
            posted += count;
        }
        completions.clear();
        connected.queue.poll_many(&mut completions)?;
        if !completions.is_empty() {
            last = Instant::now();
        }
        for completion in completions.drain(..) {
            let id = succeeded(completion)?.id;
            if let Some(at) = progress.get_mut((id >> COUNT) as usize) {
                let now = id & ((1 << COUNT) - 1);
                done += now - at.done;
                at.done = now;
            }
        }
        if notes_times && done > times.completed.len() as u64 {
            times.completed.resize(done as usize, start.elapsed());
        }
        let is_all = !goes_on || posted == each.saturating_mul(pairs);
        if is_all && done == posted {
            return Ok(Bandwidth::of(connected.size, done, last - start, &times));
        }
        ensure!(last.elapsed() < HUNG, "nothing has completed for {} s", HUNG.as_secs());
    }
}
