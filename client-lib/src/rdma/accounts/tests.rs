//! What must never be, and what must always come to an end.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn what_the_other_side_must_not_is_noticed() {
    let mut places = Places::slots(2);
    assert!(places.freed(0).is_err() && places.freed(2).is_err() && places.heard().is_err());
    assert_eq!((places.take(), places.take(), places.take()), (Some(0), Some(1), None));
    assert_eq!((places.freed(1), places.take()), (Ok(()), Some(1)));
    let mut ring = Places::ring(4);
    assert!(ring.heard().is_err() && ring.freed(0).is_err());
    ring.take();
    assert_eq!(ring.heard(), Err(Violation::Heard));
    let mut own = OwnSlots::new(2);
    assert_eq!(own.landed(1), Ok(()));
    assert!(own.landed(1).is_err() && own.landed(2).is_err());
    own.free(1);
    assert!(own.landed(1).is_err(), "its sender has not heard of it");
    assert_eq!((own.say(), own.landed(1), own.say()), (Some(1), Ok(()), None));
    assert!(Reading::new(4).arrived(1).is_err());
}

#[test]
fn a_queue_that_has_been_cleared_goes_on() {
    let mut queue = SendQueue::new(4, 0);
    let ids: Vec<u64> = (0..3).map(|what| queue.post(what, 1, true).unwrap().id).collect();
    assert_eq!(queue.completed(ids[0]).collect::<Vec<_>>(), [0]);
    assert_eq!(queue.clear(), [1, 2]);
    // What is heard too late is of nothing.
    assert_eq!(queue.completed(ids[1]).count(), 0);
    let next = queue.post(3, 1, true).unwrap().id;
    assert_eq!(queue.completed(ids[2]).count(), 0);
    assert_eq!(queue.completed(next).collect::<Vec<_>>(), [3]);
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    /// The sender sends a batch of frames of so many bytes, as many of them as it may.
    Send(Vec<usize>),
    /// The next request reaches the receiver.
    Land,
    /// The sender looks at its completions.
    Poll,
    /// The receiver's code lets go of one of its frames.
    Drop(usize),
    /// The receiver says what is free.
    Say,
    /// What it said reaches the sender.
    Hear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec(1..100_usize, 1..5).prop_map(Step::Send),
        4 => Just(Step::Land),
        2 => Just(Step::Poll),
        3 => any::<usize>().prop_map(Step::Drop),
        3 => Just(Step::Say),
        2 => Just(Step::Hear),
    ];
    prop::collection::vec(step, 0..200)
}

const SLOTS: u16 = 5;
const RING: u16 = 4;
const CAPACITY: usize = 256;
const DEPTH: u16 = 4;

/// Two ends and what is under way between them. Everything that a device would refuse, or overwrite, fails the test.
struct World {
    places: Places,
    queue: SendQueue<Staged>,
    staging: Staging,
    /// Bytes that the device may still read.
    in_use: VecDeque<(usize, usize)>,
    /// Requests under way: number, slot, whether it is signalled.
    sent: VecDeque<(Posting, u16)>,
    completions: VecDeque<u64>,
    own: OwnSlots,
    held: Vec<u16>,
    ring: Places,
    reading: Reading,
    said: VecDeque<(u16, u16)>,
    heard_under_way: u32,
}

impl World {
    fn new() -> Self {
        Self {
            places: Places::slots(SLOTS),
            queue: SendQueue::new(DEPTH, 0),
            staging: Staging::new(CAPACITY),
            in_use: VecDeque::new(),
            sent: VecDeque::new(),
            completions: VecDeque::new(),
            own: OwnSlots::new(SLOTS),
            held: Vec::new(),
            ring: Places::ring(RING),
            reading: Reading::new(RING),
            said: VecDeque::new(),
            heard_under_way: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(frames) => self.send(&frames),
            Step::Land => {
                if let Some((posting, slot)) = self.sent.pop_front() {
                    self.own.landed(slot).expect("a slot that is free");
                    self.held.push(slot);
                    if posting.is_signalled {
                        self.completions.push_back(posting.id);
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
            Step::Say => {
                if self.ring.has_one()
                    && let Some(slot) = self.own.say()
                {
                    self.said.push_back((self.ring.take().expect("there is one"), slot));
                    assert!(self.said.len() <= RING.into());
                }
            }
            Step::Hear => {
                if let Some((place, slot)) = self.said.pop_front() {
                    self.places.freed(slot).expect("it was in use");
                    if self.reading.arrived(place.into()).expect("in order") {
                        self.heard_under_way += 1;
                        assert!(self.heard_under_way <= 2, "receive requests for two are there");
                    }
                } else if self.heard_under_way > 0 {
                    self.heard_under_way -= 1;
                    self.ring.heard().expect("it was told that much");
                }
            }
        }
    }

    fn send(&mut self, frames: &[usize]) {
        let mut batch = Vec::new();
        for &bytes in frames {
            if !(self.places.has_one() && self.queue.has_room_for(batch.len() + 1)) {
                break;
            }
            let Some(staged) = self.staging.take(bytes) else { break };
            assert!(staged.offset + bytes <= CAPACITY);
            let overlaps = |&(offset, length): &(usize, usize)| {
                offset < staged.offset + bytes && staged.offset < offset + length
            };
            assert!(!self.in_use.iter().any(overlaps), "bytes that the device still reads");
            self.in_use.push_back((staged.offset, bytes));
            batch.push((staged, bytes, self.places.take().expect("there is one")));
        }
        let count = batch.len();
        for (number, (staged, bytes, slot)) in (1..).zip(batch) {
            let posting = self.queue.post(staged, bytes, number == count).expect("there is room");
            self.sent.push_back((posting, slot));
        }
        assert!(self.sent.len() <= SLOTS.into());
    }

    /// Everything goes on until nothing is under way.
    fn settle(&mut self) {
        for _ in 0..20 {
            for step in [Step::Land, Step::Poll, Step::Drop(0), Step::Say, Step::Hear] {
                self.step(step);
            }
        }
    }
}

proptest! {
    #[test]
    fn nothing_overflows_and_nothing_stands_still(steps in steps()) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        world.settle();
        prop_assert!(world.queue.is_empty() && world.in_use.is_empty());
        prop_assert!(world.staging.take(CAPACITY).is_some(), "all of it is free");
        let free: BTreeSet<_> = std::iter::from_fn(|| world.places.take()).collect();
        prop_assert_eq!(free.len(), usize::from(SLOTS));
    }
}

/// What happens to a send queue beside two further pairs.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Post {
        is_divided: bool,
    },
    /// The next request of the first pair has been done.
    Sent,
    /// The next part of a further pair.
    Part(usize),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        3 => any::<bool>().prop_map(|is_divided| Deed::Post { is_divided }),
        3 => Just(Deed::Sent),
        4 => (0..2_usize).prop_map(Deed::Part),
    ];
    prop::collection::vec(deed, 0..300)
}

proptest! {
    /// Pairs are at their own pace; what leaves is what a model says that all of them have done.
    #[test]
    fn a_request_is_done_when_all_its_parts_are(deeds in deeds()) {
        let mut queue = SendQueue::new(DEPTH, 2);
        // Of each request that is under way: its number, and which of the three pairs still have something of it.
        let mut model: VecDeque<(u64, [bool; 3])> = VecDeque::new();
        let (mut next, mut parts) = (0, [0; 2]);
        for deed in deeds {
            let done = |model: &mut VecDeque<(u64, [bool; 3])>, pair: usize| {
                let first = model.iter_mut().find(|(_, left)| left[pair]);
                first.map(|(number, left)| { left[pair] = false; *number })
            };
            let left: Vec<u64> = match deed {
                Deed::Post { is_divided } => {
                    if let Some(posting) = queue.post_divided(next, 1, false, is_divided) {
                        prop_assert_eq!(posting.id, next);
                        prop_assert_eq!(posting.parts.is_some(), is_divided);
                        model.push_back((next, [true, is_divided, is_divided]));
                        next += 1;
                    } else {
                        prop_assert_eq!(model.len(), usize::from(DEPTH));
                    }
                    continue;
                }
                Deed::Sent => match done(&mut model, 0) {
                    Some(id) => queue.completed(id).collect(),
                    None => continue,
                },
                Deed::Part(pair) => match done(&mut model, pair + 1) {
                    // Parts are counted from 1, by themselves.
                    Some(_) => { parts[pair] += 1; queue.part_completed(pair, parts[pair]).collect() }
                    None => continue,
                },
            };
            let gone = model.iter().take_while(|(_, left)| *left == [false; 3]).count();
            let expected: Vec<u64> = model.drain(..gone).map(|(number, _)| number).collect();
            prop_assert_eq!(left, expected);
        }
        prop_assert_eq!(queue.is_empty(), model.is_empty());
    }
}
