use std::ops::Range;

use rdma_sys::ibv_wc_status::{
    IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR,
};

use crate::{Call, Completion, Domain, Lent, MOST_WRITES, Queue, Remote, Write};

use super::{DEPTHS, INLINE, LENGTH, Rig, assert_fails, bare, connect, outcomes, pattern, polled, size};

#[test]
fn bytes_and_immediates_arrive_in_order() {
    let rig = Rig::new();
    rig.receiver.receive(70).unwrap();
    rig.receiver.receive(71).unwrap();
    let told = |immediate, write| Write { immediate: Some(immediate), ..write };
    let writes = [
        rig.part(1, 0..5000),
        told(0x0102_0304, rig.part(2, 5000..LENGTH)),
        told(u32::MAX, bare(3, Remote { address: 0, key: 0 })),
    ];
    rig.sender.write(&writes).unwrap();
    assert_eq!(rig.landed(), pattern(LENGTH));
    let came = |id, immediate| Completion { id, status: Ok(()), immediate };
    assert_eq!(polled(&rig.received), [came(70, Some(0x0102_0304)), came(71, Some(u32::MAX))]);
    assert_eq!(polled(&rig.sent), [came(1, None), came(2, None), came(3, None)]);
}

#[test]
fn what_is_short_goes_with_the_request() {
    for (length, is_inline) in [(1, true), (INLINE, true), (INLINE + 1, false)] {
        let rig = Rig::new();
        rig.fake.hold();
        rig.sender.write(&[rig.part(1, 0..length)]).unwrap();
        rig.region.write(0, &vec![0xee; length]).unwrap();
        rig.fake.release();
        let expected = if is_inline { pattern(length) } else { vec![0xee; length] };
        assert_eq!(rig.landed()[..length], expected);
    }
}

#[test]
fn both_parts_together_are_short_or_not() {
    for (length, is_inline) in [(INLINE - 92, true), (INLINE - 91, false)] {
        let rig = Rig::new();
        let pages = crate::Pages::new(size(LENGTH)).unwrap();
        pages.register(&rig.domain).unwrap();
        rig.fake.hold();
        rig.sender
            .write(&[Write { lent: Some((Lent::Pages(&pages), 0..92)), ..rig.part(1, 0..length) }])
            .unwrap();
        rig.region.write(0, &vec![0xee; length]).unwrap();
        rig.fake.release();
        assert_eq!(rig.landed()[0] != 0xee, is_inline);
    }
}

#[test]
fn what_is_not_within_the_region_is_not_posted() {
    let rig = Rig::new();
    for outside in [0..LENGTH + 1, LENGTH + 1..LENGTH + 1, usize::MAX - 1..usize::MAX, 0..usize::MAX] {
        assert_fails(rig.sender.write(&[rig.part(1, outside)]), Call::Reach, libc::EINVAL);
    }
    assert_fails(rig.sender.write(&[rig.part(1, Range { start: 2, end: 1 })]), Call::Reach, libc::EINVAL);
    rig.sender.write(&[rig.part(2, LENGTH..LENGTH)]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(2, None)]);
}

#[test]
fn a_part_is_a_gibibyte_at_most() {
    const LONGEST: usize = 1 << 30;
    let rig = Rig::new();
    let region = rig.domain.region(size(LONGEST + 1)).unwrap();
    let pages = crate::Pages::new(size(LONGEST + 1)).unwrap();
    pages.register(&rig.domain).unwrap();
    let part = |length| Write { part: Some((&region, 0..length)), ..rig.part(1, 0..0) };
    let lent = |length| rig.lent(2, &pages, 0..length);
    rig.fake.hold();
    rig.sender.write(&[part(LONGEST), lent(LONGEST)]).unwrap();
    for write in [part(LONGEST + 1), lent(LONGEST + 1)] {
        assert_fails(rig.sender.write(&[write]), Call::Reach, libc::EINVAL);
    }
}

#[test]
fn so_many_writes_go_at_once_and_no_more() {
    let rig = Rig::new();
    let depths = crate::Depths { send: MOST_WRITES as u16 + 1, ..DEPTHS };
    let fresh =
        [&rig.sent, &rig.received].map(|queue| crate::Fresh::new(&rig.domain, queue, depths).unwrap());
    let ends = fresh.each_ref().map(super::end);
    let [sender, receiver] = fresh;
    let (sender, _receiver) =
        (sender.connect(super::PATH, ends[1]).unwrap(), receiver.connect(super::PATH, ends[0]).unwrap());
    let writes: Vec<_> = (0..=MOST_WRITES).map(|id| rig.part(id as u64, id * 10..id * 10 + 10)).collect();
    assert_fails(sender.write(&writes), Call::Send, libc::E2BIG);
    assert_eq!(outcomes(&rig.sent), []);
    sender.write(&writes[..MOST_WRITES]).unwrap();
    sender.write(&[]).unwrap();
    let ids: Vec<_> = outcomes(&rig.sent).into_iter().map(|(id, _)| id as usize).collect();
    assert!(ids.into_iter().eq(0..MOST_WRITES));
    assert_eq!(rig.landed()[..MOST_WRITES * 10], pattern(LENGTH)[..MOST_WRITES * 10]);
    assert_eq!(rig.landed()[MOST_WRITES * 10..], [0; LENGTH][MOST_WRITES * 10..]);
}

#[test]
fn a_full_send_queue_is_an_error_until_a_completion_makes_room() {
    let rig = Rig::new();
    let silent = |id| Write { is_signalled: false, ..rig.part(id, 0..1) };
    let most = u64::from(DEPTHS.send);
    for id in 1..most {
        rig.sender.write(&[silent(id)]).unwrap();
    }
    rig.sender.write(&[rig.part(most, 0..1)]).unwrap();
    let error = rig.sender.write(&[silent(0)]).unwrap_err();
    assert_eq!((error.call(), error.errno()), (Call::Send, Some(libc::ENOMEM)));
    assert_eq!(error.hint(), Some("the send queue is full"));
    assert_eq!(outcomes(&rig.sent), [(most, None)]);
    for _ in 0..most {
        rig.sender.write(&[silent(0)]).unwrap();
    }
    assert_fails(rig.sender.write(&[silent(0)]), Call::Send, libc::ENOMEM);
}

#[test]
fn a_full_receive_queue_is_an_error() {
    let rig = Rig::new();
    for id in 0..DEPTHS.receive {
        rig.receiver.receive(id.into()).unwrap();
    }
    assert_fails(rig.receiver.receive(9), Call::Receive, libc::ENOMEM);
}

#[test]
fn an_immediate_waits_for_a_receive_request() {
    let rig = Rig::new();
    rig.sender.write(&[Write { immediate: Some(1), ..rig.part(1, 0..LENGTH) }, rig.part(2, 0..1)]).unwrap();
    assert_eq!((outcomes(&rig.sent), outcomes(&rig.received)), (vec![], vec![]));
    rig.receiver.receive(9).unwrap();
    assert_eq!((outcomes(&rig.sent), outcomes(&rig.received)), (vec![(1, None), (2, None)], vec![(9, None)]));
    assert_eq!(rig.landed(), pattern(LENGTH));
}

/// What a peer does not allow.
#[test]
fn of_a_write_that_is_refused_the_first_completion_has_the_reason() {
    let refusals: [fn(&Rig) -> Remote; 6] = [
        |rig| Remote { key: 0, ..rig.landing.remote(0).unwrap() },
        |rig| rig.landing.remote(LENGTH - 9).unwrap(),
        |rig| Remote {
            address: rig.landing.remote(0).unwrap().address - 1,
            ..rig.landing.remote(0).unwrap()
        },
        |rig| Remote { address: u64::MAX - 3, ..rig.landing.remote(0).unwrap() },
        // Memory that has gone.
        |rig| rig.domain.landing(size(LENGTH)).unwrap().remote(0).unwrap(),
        // A region, whose local key is no key for others.
        |rig| {
            let part = rig.region.part(&(0..LENGTH)).unwrap();
            Remote { address: part.addr, key: part.lkey }
        },
    ];
    for remote in refusals {
        let rig = Rig::new();
        rig.receiver.receive(9).unwrap();
        let silent = |id| Write { is_signalled: false, ..rig.part(id, 0..1) };
        let bad = Write { remote: remote(&rig), immediate: Some(1), ..rig.part(2, 0..10) };
        rig.sender.write(&[silent(1), bad, silent(3), rig.part(4, 0..1)]).unwrap();
        let flushed = Some(IBV_WC_WR_FLUSH_ERR);
        let sent = [(2, Some(IBV_WC_REM_ACCESS_ERR)), (3, flushed), (4, flushed)];
        let all = polled(&rig.sent);
        let outcome = |it: &Completion| (it.id, it.status.clone().err().map(|status| status.code()));
        assert_eq!(all.iter().map(outcome).collect::<Vec<_>>(), sent);
        // Nothing else is defined of a failure.
        assert!(all.iter().all(|completion| completion.immediate.is_none()));
        let status = all[0].status.clone().unwrap_err();
        assert!(!status.is_flush() && status.hint().unwrap().contains("does not allow writing"));
        assert_eq!(status.to_string(), "remote access error (status 10, vendor error 0xbad)");
        assert!(all[1].status.clone().unwrap_err().is_flush());
        assert_eq!(polled(&rig.received)[0].immediate, None);
        assert_eq!(rig.landed()[1..], [0; LENGTH - 1]);
        // From here on nothing is sent, and each request says so.
        rig.sender.write(&[rig.part(5, 0..1)]).unwrap();
        rig.receiver.receive(8).unwrap();
        assert_eq!((outcomes(&rig.sent), outcomes(&rig.received)), (vec![(5, flushed)], vec![(8, flushed)]));
    }
}

#[test]
fn memory_of_another_domain_is_out_of_reach_from_either_side() {
    let rig = Rig::new();
    let other = Domain::new(&rig.context).unwrap();
    let (region, landing) = (other.region(size(LENGTH)).unwrap(), other.landing(size(LENGTH)).unwrap());
    rig.sender.write(&[Write { part: Some((&region, 0..LENGTH)), ..rig.part(1, 0..0) }]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_LOC_PROT_ERR))]);
    let (sender, _receiver) = connect((&rig.domain, &rig.sent), (&rig.domain, &rig.received));
    sender.write(&[Write { remote: landing.remote(0).unwrap(), ..rig.part(2, 0..LENGTH) }]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(2, Some(IBV_WC_REM_ACCESS_ERR))]);
}

#[test]
fn a_region_that_goes_before_it_is_read_is_not_sent() {
    let rig = Rig::new();
    let region = rig.domain.region(size(LENGTH)).unwrap();
    rig.fake.hold();
    let part = Some((&region, 0..LENGTH));
    rig.sender.write(&[Write { part, ..rig.part(1, 0..0) }, rig.part(2, 0..1)]).unwrap();
    drop(region);
    rig.fake.release();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_LOC_PROT_ERR)), (2, Some(IBV_WC_WR_FLUSH_ERR))]);
}

#[test]
fn a_landing_that_goes_before_it_is_written_to_is_not() {
    let rig = Rig::new();
    let landing = rig.domain.landing(size(LENGTH)).unwrap();
    let remote = landing.remote(0).unwrap();
    rig.fake.hold();
    rig.sender.write(&[Write { remote, ..rig.part(1, 0..LENGTH) }]).unwrap();
    drop(landing);
    rig.fake.release();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_REM_ACCESS_ERR))]);
}

#[test]
fn what_has_landed_takes_no_more_once_nothing_of_it_is_held() {
    let rig = Rig::new();
    let landing = rig.domain.landing(size(LENGTH)).unwrap();
    let remote = landing.remote(0).unwrap();
    let landed = landing.landed(0..1).unwrap();
    drop(landing);
    rig.sender.write(&[Write { remote, ..rig.part(1, 0..LENGTH) }]).unwrap();
    assert_eq!((&*landed, outcomes(&rig.sent)), (&pattern(1)[..], vec![(1, None)]));
    drop(landed);
    rig.sender.write(&[Write { remote, ..rig.part(2, 0..LENGTH) }]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(2, Some(IBV_WC_REM_ACCESS_ERR))]);
}

#[test]
fn a_peer_that_has_gone_does_not_answer() {
    let rig = Rig::new();
    drop(rig.receiver);
    let write = Write { part: Some((&rig.region, 0..1)), ..bare(1, rig.landing.remote(0).unwrap()) };
    rig.sender.write(&[write]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_RETRY_EXC_ERR))]);
}

#[test]
fn a_queue_that_overflows_is_lost() {
    let rig = Rig::new();
    let queue = Queue::new(&rig.context, 2).unwrap();
    let (sender, _receiver) = connect((&rig.domain, &queue), (&rig.domain, &rig.received));
    sender.write(&[rig.part(1, 0..1), rig.part(2, 0..1)]).unwrap();
    assert_eq!(outcomes(&queue), [(1, None), (2, None)]);
    sender.write(&[rig.part(1, 0..1), rig.part(2, 0..1), rig.part(3, 0..1)]).unwrap();
    let error = queue.poll().unwrap_err();
    assert_eq!((error.call(), error.errno()), (Call::Poll, Some(libc::EIO)));
    assert!(error.hint().unwrap().contains("overflowed"));
    assert_fails(queue.poll_many(&mut Vec::new()), Call::Poll, libc::EIO);
}

#[test]
fn completions_beyond_the_room_for_them_are_not_read() {
    let rig = Rig::new();
    rig.fake.set(|world| world.is_mad = true);
    assert_fails(rig.sent.poll(), Call::Poll, libc::EIO);
    assert_fails(rig.sent.poll_many(&mut Vec::new()), Call::Poll, libc::EIO);
}
