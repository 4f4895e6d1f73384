//! Shares of a listener's slots: how many each sender gets and gives back, and which connection is
//! closed, where the slots are too few for all. Pure.
//!
//! - As long as there are enough, each sender gets as many as the listener wants it to have.
//! - After that, newcomers get what is free, up to an even share. If that is less, others give
//!   slots back: first those that they have not used lately, then those beyond an even share. An
//!   address that has no more slots than the newcomer's gives none.
//! - A sender that cannot give back some of its slots (by RDMA, or of a version before) is closed
//!   for that when it has sent nothing lately: it comes back, and gets an even share.
//! - If all that does not help, one connection is closed for another, if nothing of it is
//!   unacknowledged: one of the address that has the most, and only for an address that has fewer,
//!   the newcomer counted. So no two are closed for each other in turn. One that has sent nothing
//!   lately is closed before others.
//!
//! An address with many connections loses its own first, so it cannot displace other addresses.

use std::collections::HashMap;
use std::net::IpAddr;

/// Slots of one connection: how many it has, uses, and may keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) id: u64,
    pub(super) address: IpAddr,
    /// Slots that are promised to the connection, so that no other connection can have them.
    pub(super) slots: u32,
    /// Slots that the connection may keep: fewer than promised while it gives some back. Of a
    /// connection that is over, the slots with frames that the program keeps.
    pub(super) limit: u32,
    /// Most slots of the connection that had frames in them at a time, lately.
    pub(super) used: u32,
    /// Whether the connection's sender gives back slots when it is told to (not by RDMA).
    pub(super) is_limitable: bool,
    /// Whether the connection's sender has been told a limit on its slots, and has not answered
    /// yet.
    pub(super) is_asked: bool,
    /// Whether the connection ends, and gives back the slots beyond its limit: it has been told to,
    /// or a later connection of its sender takes its place.
    pub(super) is_over: bool,
    /// Whether the program has dropped all frames of the connection that have come.
    pub(super) is_idle: bool,
    /// Whether no frame of the connection has come lately. A connection that is idle, but not
    /// quiet, is between two frames.
    pub(super) is_quiet: bool,
}

/// Change to one connection's slots, for a newcomer or for the connection itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Tells the sender of connection `id` that it has `to` slots from now on.
    Limit { id: u64, to: u32 },
    /// Closes the connection `id`, to give its slots to others; its sender may come back.
    Close { id: u64 },
}

impl Share {
    /// Returns how many slots the connection is about to give back. The program may keep frames in
    /// some for longer.
    fn coming(&self) -> u32 {
        if self.is_asked { self.slots.saturating_sub(self.limit) } else { 0 }
    }

    fn may_give(&self) -> bool {
        self.is_limitable && !self.is_asked
    }
}

/// Returns how many slots each connection has if all have as many, but at least one.
pub(super) fn even(total: u32, connections: usize) -> u32 {
    total.checked_div(u32::try_from(connections).unwrap_or(u32::MAX)).unwrap_or(total).max(1)
}

/// Returns how many slots a newcomer gets beside the others. Of those that it keeps until it
/// ends (`is_lasting`), it gets at most half of what is free, so that some are left for the next.
pub(super) fn first(total: u32, free: u32, others: usize, wanted: u32, is_lasting: bool) -> u32 {
    match free {
        _ if is_lasting => wanted.min(free.div_ceil(2)),
        _ if free >= wanted => wanted,
        _ => wanted.min(free).min(even(total, others + 1)),
    }
}

/// Returns the steps that make room for a newcomer, which finds less than an even share free, or as
/// many connections as allowed (`is_crowded`). There are none if enough is about to become free
/// already, or if nothing can be taken back.
pub(super) fn make_room(
    total: u32,
    shares: &[Share],
    is_crowded: bool,
    (newcomer, wanted): (IpAddr, u32),
) -> Vec<Step> {
    let promised: u32 = shares.iter().map(|share| share.slots).sum();
    let (over, shares): (Vec<Share>, Vec<Share>) = shares.iter().copied().partition(|share| share.is_over);
    let fair = even(total, shares.len() + 1);
    let mut slots: HashMap<IpAddr, u32> = HashMap::new();
    for share in &shares {
        *slots.entry(share.address).or_default() += share.slots;
    }
    let own = slots.get(&newcomer).copied().unwrap_or_default();
    let may_be_asked = |share: &Share| {
        share.address == newcomer || slots.get(&share.address).is_some_and(|slots| *slots > own)
    };
    if !is_crowded {
        let ending: u32 = over.iter().map(|share| share.slots.saturating_sub(share.limit)).sum();
        let coming = ending + shares.iter().map(Share::coming).sum::<u32>();
        let needed = wanted.min(fair).saturating_sub(coming + (total - promised.min(total)));
        if needed == 0 {
            return Vec::new();
        }
        let richer: Vec<_> = shares.iter().filter(|share| may_be_asked(share)).copied().collect();
        let unused = take_back(&richer, needed, |share| share.used.max(1));
        let steps = match given(&richer, &unused) >= needed {
            true => unused,
            false => take_back(&richer, needed, |share| share.used.clamp(1, fair)),
        };
        if !steps.is_empty() || coming > 0 {
            return steps;
        }
    }
    // One that is about to end makes the listener less crowded. A connection lasts until the
    // program has dropped its frames, though, for which no newcomer should wait.
    let is_ending = |share: &Share| match share.is_over {
        true => share.is_idle,
        false => share.is_asked && share.limit == 0,
    };
    if is_crowded && over.iter().chain(&shares).any(is_ending) {
        return Vec::new();
    }
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for share in &shares {
        *counts.entry(share.address).or_default() += 1;
    }
    let count = |address: &IpAddr| counts.get(address).copied().unwrap_or_default();
    let idle = || shares.iter().filter(|share| share.is_idle && share.limit > 0);
    let has_too_much = |share: &&Share| {
        !is_crowded && !share.is_limitable && share.is_quiet && share.slots > fair && may_be_asked(share)
    };
    let too_much = idle().filter(has_too_much).max_by_key(|share| (count(&share.address), share.slots));
    let one_more = count(&newcomer) + 1;
    let least_used = || {
        let others = idle().filter(|share| count(&share.address) > one_more);
        // The latest of those that are alike. To be active does not protect an address that has
        // more connections than the newcomer's, or it could keep all others out.
        others.max_by_key(|share| (count(&share.address), share.is_quiet, u32::MAX - share.used, share.id))
    };
    let closed = too_much.or_else(least_used);
    closed.map(|share| Step::Close { id: share.id }).into_iter().collect()
}

/// Returns the limits by which `needed` slots are given back, or as many as possible: evenly from
/// those that have the most, but not below each one's floor.
fn take_back(shares: &[Share], needed: u32, floor: impl Fn(&Share) -> u32) -> Vec<Step> {
    let givers = || shares.iter().filter(|share| share.may_give());
    let limit = |share: &Share, level: u32| level.max(floor(share)).min(share.limit);
    let gives = |level: u32| givers().map(|share| share.limit - limit(share, level)).sum::<u32>();
    // Searches the highest level that is low enough.
    let (mut low, mut high) = (1, givers().map(|share| share.limit).max().unwrap_or(1));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if gives(middle) >= needed {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let steps = givers().map(|share| (share, limit(share, low))).filter(|(share, to)| *to < share.limit);
    steps.map(|(share, to)| Step::Limit { id: share.id, to }).collect()
}

/// Returns how many of these connections' slots the steps give back together.
fn given(shares: &[Share], steps: &[Step]) -> u32 {
    let of = |step: &Step| match step {
        Step::Limit { id, to } => {
            shares.iter().find(|share| share.id == *id).map_or(0, |share| share.limit - to)
        }
        Step::Close { .. } => 0,
    };
    steps.iter().map(of).sum()
}

/// Returns the steps that give free slots to the connections that use all of theirs and want more.
pub(super) fn grow(total: u32, shares: &[Share], wanted: u32) -> Vec<Step> {
    let promised: u32 = shares.iter().map(|share| share.slots).sum();
    let mut free = total.saturating_sub(promised);
    let is_short = |share: &&Share| {
        let is_whole = share.limit > 0 && share.limit == share.slots;
        share.may_give() && is_whole && share.used >= share.limit && share.limit < wanted
    };
    let mut left = shares.iter().filter(is_short).count();
    let mut steps = Vec::new();
    for share in shares.iter().filter(is_short) {
        let more = even(free, left).min(free).min(wanted - share.limit);
        left -= 1;
        free -= more;
        if more > 0 {
            steps.push(Step::Limit { id: share.id, to: share.limit + more });
        }
    }
    steps
}

#[cfg(test)]
mod tests;
