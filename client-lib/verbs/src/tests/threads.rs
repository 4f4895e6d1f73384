use std::sync::Barrier;
use std::thread;

use crate::fake::Fake;
use crate::{CompletionChannel, CompletionQueue, Pages, ProtectionDomain, Write, ZeroCopy};

use super::{LENGTH, Rig, bare, connect, polled, size};

/// Threads copy, post and poll at the same time, with one queue pair and one region.
#[test]
fn writers_and_senders_share_a_region() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 200;
    const SHARE: usize = LENGTH / THREADS;
    let rig = Rig::new();
    let barrier = Barrier::new(THREADS);
    let work = |thread: usize| {
        let (mut seen, start) = (Vec::new(), thread * SHARE);
        barrier.wait();
        for round in 1..=ROUNDS {
            rig.region.write(start, &[(round + thread) as u8; SHARE]).unwrap();
            let id = (thread * ROUNDS + round) as u64;
            rig.sender.post_writes(&[rig.sge(id, start..start + SHARE)]).unwrap();
            // A completion of any thread: each finds as many as it has posted.
            let found = std::iter::repeat_with(|| rig.sent.poll().unwrap()).flatten().next().unwrap();
            found.status.unwrap();
            seen.push(found.id);
            // The other threads do not change this thread's share.
            let mut bytes = [0; SHARE];
            rig.receive_buffer.read(start, &mut bytes).unwrap();
            assert_eq!(bytes, [(round + thread) as u8; SHARE]);
        }
        seen
    };
    let mut seen: Vec<u64> = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert!(seen.into_iter().eq(1..=(THREADS * ROUNDS) as u64));
}

/// Copies into a region exclude each other.
#[test]
fn concurrent_copies_to_one_place_do_not_mix() {
    const LONG: usize = 1 << 20;
    const THREADS: u8 = 4;
    let rig = Rig::new();
    let (region, receive_buffer) =
        (rig.domain.memory_region(size(LONG)).unwrap(), rig.domain.receive_buffer(size(LONG)).unwrap());
    for round in 0..50 {
        let barrier = Barrier::new(THREADS.into());
        thread::scope(|scope| {
            for byte in 0..THREADS {
                let (region, barrier) = (&region, &barrier);
                scope.spawn(move || {
                    let bytes = vec![byte; LONG];
                    barrier.wait();
                    region.write(0, &bytes).unwrap();
                });
            }
        });
        let sge = Some((&region, 0..LONG));
        rig.sender.post_writes(&[Write { sge, ..bare(round, receive_buffer.remote(0).unwrap()) }]).unwrap();
        assert_eq!(polled(&rig.sent).len(), 1);
        let received = receive_buffer.received(0..LONG).unwrap();
        assert!(received.iter().all(|&byte| byte == received[0]), "a mixture");
    }
}

/// Threads drop handles of the same objects at the same time.
#[test]
fn any_thread_may_drop_the_last_handle() {
    let fake = Fake::new();
    for _ in 0..100 {
        let context = fake.open();
        let channel = CompletionChannel::new(&context).unwrap();
        let queue = CompletionQueue::with_channel(&channel, 1, 16).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let (region, receive_buffer) =
            (domain.memory_region(size(9)).unwrap(), domain.receive_buffer(size(9)).unwrap());
        let (one, other) = connect((&domain, &queue), (&domain, &queue));
        let sge = Some((&region, 0..9));
        one.post_writes(&[Write { sge, ..bare(1, receive_buffer.remote(0).unwrap()) }]).unwrap();
        assert_eq!(polled(&queue).len(), 1);
        let received = receive_buffer.received(0..9).unwrap();
        let pairs = [Some(one), Some(other), None];
        let barrier = Barrier::new(pairs.len());
        thread::scope(|scope| {
            for pair in pairs {
                let handles = (received.clone(), region.clone(), receive_buffer.clone(), domain.clone());
                let handles = (handles, queue.clone(), channel.clone(), context.clone(), pair);
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    drop(handles);
                });
            }
            drop((received, region, receive_buffer, domain, queue, channel, context));
        });
        assert_eq!(fake.remaining(), "");
    }
}

/// Connections are created and destroyed, as a listener's are, and pages are sent on all of them.
#[test]
fn pages_are_sent_while_connections_come_and_go() {
    const THREADS: usize = 3;
    let fake = Fake::new();
    let context = fake.open();
    let shared = Pages::new(size(LENGTH)).unwrap();
    let connection = || {
        let (domain, queue) =
            (ProtectionDomain::new(&context).unwrap(), CompletionQueue::new(&context, 16).unwrap());
        let (one, _other) = connect((&domain, &queue), (&domain, &queue));
        let receive_buffer = domain.receive_buffer(size(LENGTH)).unwrap();
        let own = Pages::new(size(LENGTH)).unwrap();
        for pages in [&shared, &own] {
            pages.register(&domain).unwrap();
            let zero_copy = Some((ZeroCopy::Pages(pages), 0..LENGTH));
            one.post_writes(&[Write { zero_copy, ..bare(1, receive_buffer.remote(0).unwrap()) }]).unwrap();
            let [completion] = &polled(&queue)[..] else { panic!("one write, one completion") };
            assert_eq!(completion.status, Ok(()));
        }
        domain.retire();
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..100).for_each(|_| connection()));
        }
    });
    drop(shared);
    fake.wait_until(|left| left == "1 device 1 context ");
}
