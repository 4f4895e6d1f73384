use std::sync::{Arc, Barrier};
use std::thread;

use rdma_sys::ibv_wc_status::{IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR};

use crate::fake::Verb;
use crate::{Call, CompletionQueue, Pages, ProtectionDomain, Write, ZeroCopy};

use super::{LENGTH, Rig, assert_fails, bare, connect, outcomes, pattern, size};

fn filled() -> Pages {
    let mut pages = Pages::new(size(LENGTH)).unwrap();
    pages.bytes_mut().copy_from_slice(&pattern(LENGTH));
    pages
}

#[test]
fn a_released_domain_keeps_no_registration() {
    let rig = Rig::new();
    let pages: Vec<_> = (0..100).map(|_| Pages::new(size(LENGTH)).unwrap()).collect();
    let before = rig.fake.registrations();
    let [domain, other] = [(); 2].map(|()| ProtectionDomain::new(&rig.context).unwrap());
    for pages in &pages {
        pages.register(&domain).unwrap();
        pages.register(&other).unwrap();
    }
    assert_eq!(rig.fake.registrations(), before + 200);
    domain.release();
    assert_eq!(rig.fake.registrations(), before + 100);
    domain.release();
    pages[0].register(&other).unwrap();
    assert_eq!(rig.fake.registrations(), before + 100);
    // As a thread does that has not noticed the release.
    pages[0].register(&domain).unwrap();
    assert_eq!(rig.fake.registrations(), before + 100);
}

#[test]
fn pages_are_sent_in_place() {
    let rig = Rig::new();
    let mut pages = filled();
    pages.register(&rig.domain).unwrap();
    rig.fake.hold();
    rig.sender.post_writes(&[rig.zero_copy(1, &pages, 1..LENGTH)]).unwrap();
    pages.bytes_mut()[1] = 0xee;
    rig.fake.release();
    assert_eq!(rig.received()[0], 0xee);
    assert_eq!(rig.received()[1..LENGTH - 1], pattern(LENGTH)[2..]);
    assert_eq!(outcomes(&rig.sent), [(1, None)]);
}

#[test]
fn pages_are_sent_after_copied_bytes() {
    let rig = Rig::new();
    let pages = filled();
    pages.register(&rig.domain).unwrap();
    let zero_copy = Some((ZeroCopy::Pages(&pages), 0..5000));
    rig.sender.post_writes(&[Write { zero_copy, ..rig.sge(1, 0..100) }]).unwrap();
    assert_eq!(rig.received()[..100], pattern(LENGTH)[..100]);
    assert_eq!(rig.received()[100..5100], pattern(LENGTH)[..5000]);
    assert_eq!(rig.received()[5100..], [0; LENGTH - 5100]);
}

#[test]
fn only_pages_registered_under_the_pairs_domain_are_sent() {
    let rig = Rig::new();
    let (pages, other) = (filled(), ProtectionDomain::new(&rig.context).unwrap());
    let write = |range| rig.sender.post_writes(&[rig.zero_copy(1, &pages, range)]);
    assert_fails(write(0..1), Call::REACH, libc::EINVAL);
    pages.register(&other).unwrap();
    assert_fails(write(0..1), Call::REACH, libc::EINVAL);
    pages.register(&rig.domain).unwrap();
    for outside in [0..LENGTH + 1, LENGTH + 1..LENGTH + 1, usize::MAX - 1..usize::MAX, 0..usize::MAX] {
        assert_fails(write(outside), Call::REACH, libc::EINVAL);
    }
    assert_fails(write(std::ops::Range { start: 2, end: 1 }), Call::REACH, libc::EINVAL);
    write(LENGTH..LENGTH).unwrap();
    write(0..LENGTH).unwrap();
    assert_eq!(rig.received(), pattern(LENGTH));
}

#[test]
fn pages_are_registered_once_per_domain_until_it_is_retired() {
    let rig = Rig::new();
    let before = rig.fake.registrations();
    let domains = [(); 3].map(|()| ProtectionDomain::new(&rig.context).unwrap());
    let pages = filled();
    for domain in domains.iter().cycle().take(9) {
        pages.register(domain).unwrap();
    }
    assert_eq!(rig.fake.registrations(), before + 3);
    domains[0].retire();
    domains[1].retire();
    assert_eq!(rig.fake.registrations(), before + 3);
    pages.register(&domains[2]).unwrap();
    assert_eq!(rig.fake.registrations(), before + 1);
    // Destroyed domains are not held.
    drop(domains);
    assert!(rig.fake.remaining().contains(" 2 domain "), "{}", rig.fake.remaining());
    drop(pages);
    rig.fake.wait_until(|left| left.contains(" 1 domain "));
    assert_eq!(rig.fake.registrations(), before);
}

#[test]
fn a_failed_registration_is_not_remembered() {
    let rig = Rig::new();
    let pages = filled();
    for errno in [libc::ENOMEM, libc::EOPNOTSUPP, libc::EFAULT] {
        rig.fake.fail(Verb::RegMr, errno);
        assert_fails(pages.register(&rig.domain), Call::REGISTER, errno);
        assert_fails(rig.sender.post_writes(&[rig.zero_copy(1, &pages, 0..1)]), Call::REACH, libc::EINVAL);
    }
    rig.fake.stop_failing();
    pages.register(&rig.domain).unwrap();
    rig.sender.post_writes(&[rig.zero_copy(1, &pages, 0..LENGTH)]).unwrap();
    assert_eq!(rig.received(), pattern(LENGTH));
}

#[test]
fn pages_that_end_before_they_are_read_are_not_sent() {
    let rig = Rig::new();
    let pages = filled();
    pages.register(&rig.domain).unwrap();
    rig.fake.hold();
    let registrations = rig.fake.registrations();
    rig.sender.post_writes(&[rig.zero_copy(1, &pages, 0..LENGTH), rig.sge(2, 0..1)]).unwrap();
    drop(pages);
    rig.fake.wait_until(|left| left.contains(&format!(" {} region ", registrations - 1)));
    rig.fake.release();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_LOC_PROT_ERR)), (2, Some(IBV_WC_WR_FLUSH_ERR))]);
    assert_eq!(rig.received(), [0; LENGTH]);
}

#[test]
fn threads_register_pages_once_and_send_from_them() {
    const THREADS: usize = 8;
    let rig = Rig::new();
    let (before, pages, barrier) = (rig.fake.registrations(), Arc::new(filled()), Barrier::new(THREADS));
    let queues = [(); THREADS].map(|()| CompletionQueue::new(&rig.context, 16).unwrap());
    let pairs = queues.each_ref().map(|queue| connect((&rig.domain, queue), (&rig.domain, &rig.received)));
    thread::scope(|scope| {
        for (index, (pair, queue)) in pairs.iter().zip(&queues).enumerate() {
            let (rig, pages, barrier) = (&rig, Arc::clone(&pages), &barrier);
            scope.spawn(move || {
                let range = index * 1000..index * 1000 + 1000;
                let remote = rig.receive_buffer.remote(range.start).unwrap();
                barrier.wait();
                pages.register(&rig.domain).unwrap();
                pair.0
                    .post_writes(&[Write {
                        zero_copy: Some((ZeroCopy::Pages(&pages), range)),
                        ..bare(1, remote)
                    }])
                    .unwrap();
                assert_eq!(outcomes(queue), [(1, None)]);
            });
        }
    });
    assert_eq!(rig.fake.registrations(), before + 1);
    assert_eq!(rig.received()[..8000], pattern(LENGTH)[..8000]);
    assert_eq!(pages.bytes(), pattern(LENGTH));
}
