//! Tests of this crate on a fake device. `tests/sanitize.sh` runs them again under
//! AddressSanitizer.

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
    Call, Capacities, Class, Completion, CompletionQueue, Context, Error, MemoryRegion, Pages, Path,
    ProtectionDomain, QueuePair, QueuePairAddress, ReceiveBuffer, RemoteAddress, UnconnectedQueuePair, Write,
    ZeroCopy,
};

const CLASS: Class = Class { service_level: 0, traffic_class: 0 };
const PATH: Path = Path { port: 1, gid_index: 1, mtu: 1024, class: CLASS, is_global: true };
const CAPACITIES: Capacities = Capacities { send: 8, receive: 4 };
/// The longest inline write: the device grants what is requested.
const MAX_INLINE_DATA: usize = 192;
const LENGTH: usize = 10_000;

/// Two connected queue pairs, with memory to write from and to. The fake is the last field of every
/// fixture, so that it is dropped last.
struct Rig {
    sender: QueuePair,
    receiver: QueuePair,
    /// The completion queues of the sender and of the receiver.
    sent: CompletionQueue,
    received: CompletionQueue,
    region: MemoryRegion,
    receive_buffer: ReceiveBuffer,
    domain: ProtectionDomain,
    context: Context,
    fake: Fake,
}

impl Rig {
    fn new() -> Self {
        Self::with(Fake::new())
    }

    fn with(fake: Fake) -> Self {
        let context = fake.open();
        let domain = ProtectionDomain::new(&context).unwrap();
        let [sent, received] = [64; 2].map(|depth| CompletionQueue::new(&context, depth).unwrap());
        let (sender, receiver) = connect((&domain, &sent), (&domain, &received));
        let (region, receive_buffer) =
            (domain.memory_region(size(LENGTH)).unwrap(), domain.receive_buffer(size(LENGTH)).unwrap());
        region.write(0, &pattern(LENGTH)).unwrap();
        Self { sender, receiver, sent, received, region, receive_buffer, domain, context, fake }
    }

    /// Returns a write of a range of the region to the same offset of the receive buffer.
    fn sge(&self, id: u64, range: Range<usize>) -> Write<'_> {
        let remote = self.receive_buffer.remote(range.start.min(LENGTH)).unwrap();
        Write { sge: Some((&self.region, range)), ..bare(id, remote) }
    }

    fn zero_copy<'a>(&self, id: u64, pages: &'a Pages, range: Range<usize>) -> Write<'a> {
        Write {
            zero_copy: Some((ZeroCopy::Pages(pages), range)),
            ..bare(id, self.receive_buffer.remote(0).unwrap())
        }
    }

    /// Drops all objects.
    fn end(self) -> Fake {
        self.fake
    }

    /// Returns all bytes of the receive buffer.
    fn received(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        self.receive_buffer.read(0, &mut bytes).unwrap();
        bytes
    }
}

/// Returns a signalled write without any bytes.
fn bare(id: u64, remote: RemoteAddress) -> Write<'static> {
    Write { id, sge: None, zero_copy: None, remote, immediate: None, is_signalled: true }
}

fn size(length: usize) -> NonZeroUsize {
    NonZeroUsize::new(length).unwrap()
}

/// Returns bytes in which no two ranges are alike for long.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8 ^ (index / 251) as u8 | 1).collect()
}

fn end(unconnected: &UnconnectedQueuePair) -> QueuePairAddress {
    unconnected.address(gid(), 0)
}

fn connect(
    one: (&ProtectionDomain, &CompletionQueue),
    other: (&ProtectionDomain, &CompletionQueue),
) -> (QueuePair, QueuePair) {
    let [one, other] =
        [one, other].map(|(domain, queue)| UnconnectedQueuePair::new(domain, queue, CAPACITIES).unwrap());
    let ends = (end(&one), end(&other));
    (one.connect(PATH, ends.1).unwrap(), other.connect(PATH, ends.0).unwrap())
}

/// Takes all completions.
fn polled(queue: &CompletionQueue) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        queue.poll_batch(&mut all).unwrap();
        if all.len() == before {
            return all;
        }
    }
}

/// Takes all completions: their identifiers, with the status code of those that failed.
fn outcomes(queue: &CompletionQueue) -> Vec<(u64, Option<u32>)> {
    let outcome = |it: Completion| (it.id, it.status.err().map(|status| status.code()));
    polled(queue).into_iter().map(outcome).collect()
}

#[track_caller]
fn assert_fails<T: std::fmt::Debug>(result: Result<T, Error>, call: Call, errno: i32) {
    let error = result.unwrap_err();
    assert_eq!((error.call(), error.errno()), (call, Some(errno)), "{error}");
}
