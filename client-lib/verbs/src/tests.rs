//! All that this crate has, on a device in this process. `tests/sanitize.sh` runs them once more, with each use of memory checked.

mod channels;
mod connecting;
mod failures;
mod gpu;
mod memory;
mod orders;
mod pages;
mod probe;
mod threads;
mod writes;

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::fake::{Fake, gid};
use crate::{
    Call, Class, Completion, Context, Depths, Domain, Endpoint, Error, Fresh, Landing, Lent, Pages, Pair,
    Path, Queue, Region, Remote, Write,
};

const CLASS: Class = Class { service_level: 0, traffic_class: 0 };
const PATH: Path = Path { port: 1, row: 1, mtu: 1024, class: CLASS, is_global: true };
const DEPTHS: Depths = Depths { send: 8, receive: 4 };
/// The longest write that goes with its request: the device gives what is asked for.
const INLINE: usize = 192;
const LENGTH: usize = 10_000;

/// Two pairs that are connected, and memory to write from and to. Here as everywhere, the fake goes last.
struct Rig {
    sender: Pair,
    receiver: Pair,
    /// Of the sender's completions, and the receiver's.
    sent: Queue,
    received: Queue,
    region: Region,
    landing: Landing,
    domain: Domain,
    context: Context,
    fake: Fake,
}

impl Rig {
    fn new() -> Self {
        Self::with(Fake::new())
    }

    fn with(fake: Fake) -> Self {
        let context = fake.open();
        let domain = Domain::new(&context).unwrap();
        let [sent, received] = [64; 2].map(|depth| Queue::new(&context, depth).unwrap());
        let (sender, receiver) = connect((&domain, &sent), (&domain, &received));
        let (region, landing) = (domain.region(size(LENGTH)).unwrap(), domain.landing(size(LENGTH)).unwrap());
        region.write(0, &pattern(LENGTH)).unwrap();
        Self { sender, receiver, sent, received, region, landing, domain, context, fake }
    }

    /// A write of a part of the region, to the same place of the landing.
    fn part(&self, id: u64, range: Range<usize>) -> Write<'_> {
        let remote = self.landing.remote(range.start.min(LENGTH)).unwrap();
        Write { part: Some((&self.region, range)), ..bare(id, remote) }
    }

    fn lent<'a>(&self, id: u64, pages: &'a Pages, range: Range<usize>) -> Write<'a> {
        Write { lent: Some((Lent::Pages(pages), range)), ..bare(id, self.landing.remote(0).unwrap()) }
    }

    /// Lets go of all.
    fn end(self) -> Fake {
        self.fake
    }

    /// All that lies in the landing.
    fn landed(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        self.landing.read(0, &mut bytes).unwrap();
        bytes
    }
}

/// A write of nothing, with a completion.
fn bare(id: u64, remote: Remote) -> Write<'static> {
    Write { id, part: None, lent: None, remote, immediate: None, is_signalled: true }
}

fn size(length: usize) -> NonZeroUsize {
    NonZeroUsize::new(length).unwrap()
}

/// Bytes of which no two parts are alike for long.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8 ^ (index / 251) as u8 | 1).collect()
}

fn end(fresh: &Fresh) -> Endpoint {
    fresh.endpoint(gid(), 0)
}

fn connect(one: (&Domain, &Queue), other: (&Domain, &Queue)) -> (Pair, Pair) {
    let [one, other] = [one, other].map(|(domain, queue)| Fresh::new(domain, queue, DEPTHS).unwrap());
    let ends = (end(&one), end(&other));
    (one.connect(PATH, ends.1).unwrap(), other.connect(PATH, ends.0).unwrap())
}

/// All that has completed.
fn polled(queue: &Queue) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        queue.poll_many(&mut all).unwrap();
        if all.len() == before {
            return all;
        }
    }
}

/// The numbers of what has completed, and the status of each that has failed.
fn outcomes(queue: &Queue) -> Vec<(u64, Option<u32>)> {
    let outcome = |it: Completion| (it.id, it.status.err().map(|status| status.code()));
    polled(queue).into_iter().map(outcome).collect()
}

#[track_caller]
fn assert_fails<T: std::fmt::Debug>(result: Result<T, Error>, call: Call, errno: i32) {
    let error = result.unwrap_err();
    assert_eq!((error.call(), error.errno()), (call, Some(errno)), "{error}");
}
