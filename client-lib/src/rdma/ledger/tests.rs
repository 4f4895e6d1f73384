use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn a_breach_of_the_protocol_is_an_error() {
    let mut slots = RemoteSlots::slots(2);
    assert!(slots.release(0).is_err() && slots.release(2).is_err() && slots.add_ring_credit().is_err());
    assert_eq!((slots.take(), slots.take(), slots.take()), (Some(0), Some(1), None));
    assert_eq!((slots.release(1), slots.take()), (Ok(()), Some(1)));
    let mut ring = RemoteSlots::ring(4);
    assert!(ring.add_ring_credit().is_err() && ring.release(0).is_err());
    ring.take();
    assert_eq!(ring.add_ring_credit(), Err(Violation::RingCredit));
    let mut own = LocalSlots::new(2);
    assert_eq!(own.occupy(1), Ok(()));
    assert!(own.occupy(1).is_err() && own.occupy(2).is_err());
    own.free(1);
    assert!(own.occupy(1).is_err(), "the sender has not been told that it is free");
    assert_eq!((own.take_freed(), own.occupy(1), own.take_freed()), (Some(1), Ok(()), None));
    assert!(RingReader::new(4).advance(1).is_err());
}

#[test]
fn a_cleared_send_queue_takes_new_requests() {
    let mut queue = SendQueue::new(4, 0);
    let ids: Vec<u64> = (0..3).map(|content| queue.post(content, 1, true).unwrap().id).collect();
    assert_eq!(queue.completed(ids[0]).collect::<Vec<_>>(), [0]);
    assert_eq!(queue.clear(), [1, 2]);
    // Late completions of cleared requests match nothing.
    assert_eq!(queue.completed(ids[1]).count(), 0);
    let next = queue.post(3, 1, true).unwrap().id;
    assert_eq!(queue.completed(ids[2]).count(), 0);
    assert_eq!(queue.completed(next).collect::<Vec<_>>(), [3]);
}

#[derive(Clone, Debug)]
enum Step {
    /// The sender posts a batch of frames with these lengths, as many of them as it may.
    Send(Vec<usize>),
    /// The next request reaches the receiver.
    Arrive,
    /// The sender polls one completion.
    Poll,
    /// The program on the receiver drops one of its frames.
    Drop(usize),
    /// The receiver sends a message about a free slot.
    Release,
    /// The sender receives that message, or the receiver a ring credit.
    Receive,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec(1..100_usize, 1..5).prop_map(Step::Send),
        4 => Just(Step::Arrive),
        2 => Just(Step::Poll),
        3 => any::<usize>().prop_map(Step::Drop),
        3 => Just(Step::Release),
        2 => Just(Step::Receive),
    ];
    prop::collection::vec(step, 0..200)
}

const SLOTS: u16 = 5;
const RING: u16 = 4;
const CAPACITY: usize = 256;
const DEPTH: u16 = 4;

/// A sender and a receiver with the messages between them. Whatever a device would refuse or
/// overwrite fails the test.
struct World {
    remote_slots: RemoteSlots,
    queue: SendQueue<StagedRange>,
    staging: StagingBuffer,
    /// Offsets and lengths that the device may still read.
    in_use: VecDeque<(usize, usize)>,
    /// Requests in flight, with their slots.
    sent: VecDeque<(WorkRequest, u16)>,
    completions: VecDeque<u64>,
    own: LocalSlots,
    held: Vec<u16>,
    ring: RemoteSlots,
    ring_reader: RingReader,
    /// Messages in flight to the sender: ring entries and the slots that they release.
    releases: VecDeque<(u16, u16)>,
    credits_in_flight: u32,
}

impl World {
    fn new() -> Self {
        Self {
            remote_slots: RemoteSlots::slots(SLOTS),
            queue: SendQueue::new(DEPTH, 0),
            staging: StagingBuffer::new(CAPACITY),
            in_use: VecDeque::new(),
            sent: VecDeque::new(),
            completions: VecDeque::new(),
            own: LocalSlots::new(SLOTS),
            held: Vec::new(),
            ring: RemoteSlots::ring(RING),
            ring_reader: RingReader::new(RING),
            releases: VecDeque::new(),
            credits_in_flight: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(frames) => self.send(&frames),
            Step::Arrive => {
                if let Some((request, slot)) = self.sent.pop_front() {
                    self.own.occupy(slot).expect("a slot that is free");
                    self.held.push(slot);
                    if request.is_signalled {
                        self.completions.push_back(request.id);
                    }
                }
            }
            Step::Poll => {
                if let Some(id) = self.completions.pop_front() {
                    let done: Vec<_> = self.queue.completed(id).collect();
                    assert!(!done.is_empty());
                    for staged in done {
                        self.staging.free(staged);
                        self.in_use.pop_front();
                    }
                }
            }
            Step::Drop(which) => {
                if !self.held.is_empty() {
                    let slot = self.held.swap_remove(which % self.held.len());
                    self.own.free(slot);
                }
            }
            Step::Release => {
                if self.ring.has_free()
                    && let Some(slot) = self.own.take_freed()
                {
                    self.releases.push_back((self.ring.take().expect("a free entry"), slot));
                    assert!(self.releases.len() <= RING.into());
                }
            }
            Step::Receive => {
                if let Some((entry, slot)) = self.releases.pop_front() {
                    self.remote_slots.release(slot).expect("it was in use");
                    if self.ring_reader.advance(entry.into()).expect("in order") {
                        self.credits_in_flight += 1;
                        assert!(self.credits_in_flight <= 2, "two receive requests are posted for credits");
                    }
                } else if self.credits_in_flight > 0 {
                    self.credits_in_flight -= 1;
                    self.ring.add_ring_credit().expect("that many entries were written");
                }
            }
        }
    }

    fn send(&mut self, frames: &[usize]) {
        let mut batch = Vec::new();
        for &bytes in frames {
            if !(self.remote_slots.has_free() && self.queue.has_room_for(batch.len() + 1)) {
                break;
            }
            let Some(staged) = self.staging.take(bytes) else { break };
            assert!(staged.offset + bytes <= CAPACITY);
            let overlaps = |&(offset, length): &(usize, usize)| {
                offset < staged.offset + bytes && staged.offset < offset + length
            };
            assert!(!self.in_use.iter().any(overlaps), "bytes that the device still reads");
            self.in_use.push_back((staged.offset, bytes));
            batch.push((staged, bytes, self.remote_slots.take().expect("a free slot")));
        }
        let count = batch.len();
        for (number, (staged, bytes, slot)) in (1..).zip(batch) {
            let request = self.queue.post(staged, bytes, number == count).expect("there is room");
            self.sent.push_back((request, slot));
        }
        assert!(self.sent.len() <= SLOTS.into());
    }

    fn run_until_idle(&mut self) {
        for _ in 0..20 {
            for step in [Step::Arrive, Step::Poll, Step::Drop(0), Step::Release, Step::Receive] {
                self.step(step);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_sequence_of_steps_overflows_nothing_and_ends_idle(steps in steps()) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        world.run_until_idle();
        prop_assert!(world.queue.is_empty() && world.in_use.is_empty());
        prop_assert!(world.staging.take(CAPACITY).is_some(), "all of it is free");
        let free: BTreeSet<_> = std::iter::from_fn(|| world.remote_slots.take()).collect();
        prop_assert_eq!(free.len(), usize::from(SLOTS));
    }
}

/// An operation on a send queue with two extra queue pairs.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Post {
        is_striped: bool,
    },
    /// The first queue pair completes its next request.
    Complete,
    /// An extra queue pair completes its next stripe.
    CompleteStripe(usize),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        3 => any::<bool>().prop_map(|is_striped| Operation::Post { is_striped }),
        3 => Just(Operation::Complete),
        4 => (0..2_usize).prop_map(Operation::CompleteStripe),
    ];
    prop::collection::vec(operation, 0..300)
}

proptest! {
    #[test]
    fn a_request_is_done_when_it_and_all_its_stripes_have_completed(operations in operations()) {
        let mut queue = SendQueue::new(DEPTH, 2);
        // The number of each posted request, and which of the three queue pairs have yet to
        // complete.
        let mut model: VecDeque<(u64, [bool; 3])> = VecDeque::new();
        let (mut next, mut stripes) = (0, [0; 2]);
        for operation in operations {
            let complete = |model: &mut VecDeque<(u64, [bool; 3])>, pair: usize| {
                let first = model.iter_mut().find(|(_, pending)| pending[pair]);
                first.map(|(number, pending)| { pending[pair] = false; *number })
            };
            let done: Vec<u64> = match operation {
                Operation::Post { is_striped } => {
                    if let Some(request) = queue.post_striped(next, 1, false, is_striped) {
                        prop_assert_eq!(request.id, next);
                        prop_assert_eq!(request.stripe.is_some(), is_striped);
                        model.push_back((next, [true, is_striped, is_striped]));
                        next += 1;
                    } else {
                        prop_assert_eq!(model.len(), usize::from(DEPTH));
                    }
                    continue;
                }
                Operation::Complete => match complete(&mut model, 0) {
                    Some(id) => queue.completed(id).collect(),
                    None => continue,
                },
                Operation::CompleteStripe(pair) => match complete(&mut model, pair + 1) {
                    // Stripes are numbered from 1, apart from the requests.
                    Some(_) => { stripes[pair] += 1; queue.stripe_completed(pair, stripes[pair]).collect() }
                    None => continue,
                },
            };
            let count = model.iter().take_while(|(_, pending)| *pending == [false; 3]).count();
            let expected: Vec<u64> = model.drain(..count).map(|(number, _)| number).collect();
            prop_assert_eq!(done, expected);
        }
        prop_assert_eq!(queue.is_empty(), model.is_empty());
    }
}
