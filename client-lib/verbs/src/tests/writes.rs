use std::ops::Range;

use rdma_sys::ibv_wc_status::{
    IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR,
};

use crate::{
    Call, Completion, CompletionQueue, MAX_WRITES, ProtectionDomain, RemoteAddress, Write, ZeroCopy,
};

use super::{
    CAPACITIES, LENGTH, MAX_INLINE_DATA, Rig, assert_fails, bare, connect, outcomes, pattern, polled, size,
};

#[test]
fn bytes_and_immediates_arrive_in_order() {
    let rig = Rig::new();
    rig.receiver.post_receive(70).unwrap();
    rig.receiver.post_receive(71).unwrap();
    let told = |immediate, write| Write { immediate: Some(immediate), ..write };
    let writes = [
        rig.sge(1, 0..5000),
        told(0x0102_0304, rig.sge(2, 5000..LENGTH)),
        told(u32::MAX, bare(3, RemoteAddress { address: 0, key: 0 })),
    ];
    rig.sender.post_writes(&writes).unwrap();
    assert_eq!(rig.received(), pattern(LENGTH));
    let came = |id, immediate| Completion { id, status: Ok(()), immediate };
    assert_eq!(polled(&rig.received), [came(70, Some(0x0102_0304)), came(71, Some(u32::MAX))]);
    assert_eq!(polled(&rig.sent), [came(1, None), came(2, None), came(3, None)]);
}

#[test]
fn short_writes_are_inline() {
    for (length, is_inline) in [(1, true), (MAX_INLINE_DATA, true), (MAX_INLINE_DATA + 1, false)] {
        let rig = Rig::new();
        rig.fake.hold();
        rig.sender.post_writes(&[rig.sge(1, 0..length)]).unwrap();
        rig.region.write(0, &vec![0xee; length]).unwrap();
        rig.fake.release();
        let expected = if is_inline { pattern(length) } else { vec![0xee; length] };
        assert_eq!(rig.received()[..length], expected);
    }
}

#[test]
fn both_entries_together_decide_whether_a_write_is_inline() {
    for (length, is_inline) in [(MAX_INLINE_DATA - 92, true), (MAX_INLINE_DATA - 91, false)] {
        let rig = Rig::new();
        let pages = crate::Pages::new(size(LENGTH)).unwrap();
        pages.register(&rig.domain).unwrap();
        rig.fake.hold();
        rig.sender
            .post_writes(&[Write {
                zero_copy: Some((ZeroCopy::Pages(&pages), 0..92)),
                ..rig.sge(1, 0..length)
            }])
            .unwrap();
        rig.region.write(0, &vec![0xee; length]).unwrap();
        rig.fake.release();
        assert_eq!(rig.received()[0] != 0xee, is_inline);
    }
}

#[test]
fn a_range_outside_the_region_is_not_posted() {
    let rig = Rig::new();
    for outside in [0..LENGTH + 1, LENGTH + 1..LENGTH + 1, usize::MAX - 1..usize::MAX, 0..usize::MAX] {
        assert_fails(rig.sender.post_writes(&[rig.sge(1, outside)]), Call::REACH, libc::EINVAL);
    }
    assert_fails(
        rig.sender.post_writes(&[rig.sge(1, Range { start: 2, end: 1 })]),
        Call::REACH,
        libc::EINVAL,
    );
    rig.sender.post_writes(&[rig.sge(2, LENGTH..LENGTH)]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(2, None)]);
}

#[test]
fn an_entry_is_a_gibibyte_at_most() {
    const MAX_SGE_BYTES: usize = 1 << 30;
    let rig = Rig::new();
    let region = rig.domain.memory_region(size(MAX_SGE_BYTES + 1)).unwrap();
    let pages = crate::Pages::new(size(MAX_SGE_BYTES + 1)).unwrap();
    pages.register(&rig.domain).unwrap();
    let sge = |length| Write { sge: Some((&region, 0..length)), ..rig.sge(1, 0..0) };
    let zero_copy = |length| rig.zero_copy(2, &pages, 0..length);
    rig.fake.hold();
    rig.sender.post_writes(&[sge(MAX_SGE_BYTES), zero_copy(MAX_SGE_BYTES)]).unwrap();
    for write in [sge(MAX_SGE_BYTES + 1), zero_copy(MAX_SGE_BYTES + 1)] {
        assert_fails(rig.sender.post_writes(&[write]), Call::REACH, libc::EINVAL);
    }
}

#[test]
fn one_call_posts_up_to_the_limit_of_writes() {
    let rig = Rig::new();
    let capacities = crate::Capacities { send: MAX_WRITES as u16 + 1, ..CAPACITIES };
    let unconnected = [&rig.sent, &rig.received]
        .map(|queue| crate::UnconnectedQueuePair::new(&rig.domain, queue, capacities).unwrap());
    let ends = unconnected.each_ref().map(super::end);
    let [sender, receiver] = unconnected;
    let (sender, _receiver) =
        (sender.connect(super::PATH, ends[1]).unwrap(), receiver.connect(super::PATH, ends[0]).unwrap());
    let writes: Vec<_> = (0..=MAX_WRITES).map(|id| rig.sge(id as u64, id * 10..id * 10 + 10)).collect();
    assert_fails(sender.post_writes(&writes), Call::SEND, libc::E2BIG);
    assert_eq!(outcomes(&rig.sent), []);
    sender.post_writes(&writes[..MAX_WRITES]).unwrap();
    sender.post_writes(&[]).unwrap();
    let ids: Vec<_> = outcomes(&rig.sent).into_iter().map(|(id, _)| id as usize).collect();
    assert!(ids.into_iter().eq(0..MAX_WRITES));
    assert_eq!(rig.received()[..MAX_WRITES * 10], pattern(LENGTH)[..MAX_WRITES * 10]);
    assert_eq!(rig.received()[MAX_WRITES * 10..], [0; LENGTH][MAX_WRITES * 10..]);
}

#[test]
fn a_full_send_queue_is_an_error_until_a_completion_makes_room() {
    let rig = Rig::new();
    let unsignalled = |id| Write { is_signalled: false, ..rig.sge(id, 0..1) };
    let most = u64::from(CAPACITIES.send);
    for id in 1..most {
        rig.sender.post_writes(&[unsignalled(id)]).unwrap();
    }
    rig.sender.post_writes(&[rig.sge(most, 0..1)]).unwrap();
    let error = rig.sender.post_writes(&[unsignalled(0)]).unwrap_err();
    assert_eq!((error.call(), error.errno()), (Call::SEND, Some(libc::ENOMEM)));
    assert_eq!(error.hint(), Some("the send queue is full"));
    assert_eq!(outcomes(&rig.sent), [(most, None)]);
    for _ in 0..most {
        rig.sender.post_writes(&[unsignalled(0)]).unwrap();
    }
    assert_fails(rig.sender.post_writes(&[unsignalled(0)]), Call::SEND, libc::ENOMEM);
}

#[test]
fn a_full_receive_queue_is_an_error() {
    let rig = Rig::new();
    for id in 0..CAPACITIES.receive {
        rig.receiver.post_receive(id.into()).unwrap();
    }
    assert_fails(rig.receiver.post_receive(9), Call::RECEIVE, libc::ENOMEM);
}

#[test]
fn an_immediate_waits_for_a_receive_request() {
    let rig = Rig::new();
    rig.sender
        .post_writes(&[Write { immediate: Some(1), ..rig.sge(1, 0..LENGTH) }, rig.sge(2, 0..1)])
        .unwrap();
    assert_eq!((outcomes(&rig.sent), outcomes(&rig.received)), (vec![], vec![]));
    rig.receiver.post_receive(9).unwrap();
    assert_eq!((outcomes(&rig.sent), outcomes(&rig.received)), (vec![(1, None), (2, None)], vec![(9, None)]));
    assert_eq!(rig.received(), pattern(LENGTH));
}

/// Destinations that the peer does not allow.
#[test]
fn the_first_completion_of_a_refused_write_has_the_reason() {
    let refusals: [fn(&Rig) -> RemoteAddress; 6] = [
        |rig| RemoteAddress { key: 0, ..rig.receive_buffer.remote(0).unwrap() },
        |rig| rig.receive_buffer.remote(LENGTH - 9).unwrap(),
        |rig| RemoteAddress {
            address: rig.receive_buffer.remote(0).unwrap().address - 1,
            ..rig.receive_buffer.remote(0).unwrap()
        },
        |rig| RemoteAddress { address: u64::MAX - 3, ..rig.receive_buffer.remote(0).unwrap() },
        // Memory that has been freed.
        |rig| rig.domain.receive_buffer(size(LENGTH)).unwrap().remote(0).unwrap(),
        // A region, whose local key is no remote key.
        |rig| {
            let sge = rig.region.sge(&(0..LENGTH)).unwrap();
            RemoteAddress { address: sge.addr, key: sge.lkey }
        },
    ];
    for remote in refusals {
        let rig = Rig::new();
        rig.receiver.post_receive(9).unwrap();
        let unsignalled = |id| Write { is_signalled: false, ..rig.sge(id, 0..1) };
        let bad = Write { remote: remote(&rig), immediate: Some(1), ..rig.sge(2, 0..10) };
        rig.sender.post_writes(&[unsignalled(1), bad, unsignalled(3), rig.sge(4, 0..1)]).unwrap();
        let flushed = Some(IBV_WC_WR_FLUSH_ERR);
        let sent = [(2, Some(IBV_WC_REM_ACCESS_ERR)), (3, flushed), (4, flushed)];
        let all = polled(&rig.sent);
        let outcome = |it: &Completion| (it.id, it.status.clone().err().map(|status| status.code()));
        assert_eq!(all.iter().map(outcome).collect::<Vec<_>>(), sent);
        // Nothing else is defined for a failure.
        assert!(all.iter().all(|completion| completion.immediate.is_none()));
        let status = all[0].status.clone().unwrap_err();
        assert!(!status.is_flush() && status.hint().unwrap().contains("does not allow writing"));
        assert_eq!(status.to_string(), "remote access error (status 10, vendor error 0xbad)");
        assert!(all[1].status.clone().unwrap_err().is_flush());
        assert_eq!(polled(&rig.received)[0].immediate, None);
        assert_eq!(rig.received()[1..], [0; LENGTH - 1]);
        // Everything posted from here on is flushed.
        rig.sender.post_writes(&[rig.sge(5, 0..1)]).unwrap();
        rig.receiver.post_receive(8).unwrap();
        assert_eq!((outcomes(&rig.sent), outcomes(&rig.received)), (vec![(5, flushed)], vec![(8, flushed)]));
    }
}

#[test]
fn memory_of_another_domain_is_out_of_reach_from_either_side() {
    let rig = Rig::new();
    let other = ProtectionDomain::new(&rig.context).unwrap();
    let (region, receive_buffer) =
        (other.memory_region(size(LENGTH)).unwrap(), other.receive_buffer(size(LENGTH)).unwrap());
    rig.sender.post_writes(&[Write { sge: Some((&region, 0..LENGTH)), ..rig.sge(1, 0..0) }]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_LOC_PROT_ERR))]);
    let (sender, _receiver) = connect((&rig.domain, &rig.sent), (&rig.domain, &rig.received));
    sender
        .post_writes(&[Write { remote: receive_buffer.remote(0).unwrap(), ..rig.sge(2, 0..LENGTH) }])
        .unwrap();
    assert_eq!(outcomes(&rig.sent), [(2, Some(IBV_WC_REM_ACCESS_ERR))]);
}

#[test]
fn a_region_that_ends_before_it_is_read_is_not_sent() {
    let rig = Rig::new();
    let region = rig.domain.memory_region(size(LENGTH)).unwrap();
    rig.fake.hold();
    let sge = Some((&region, 0..LENGTH));
    rig.sender.post_writes(&[Write { sge, ..rig.sge(1, 0..0) }, rig.sge(2, 0..1)]).unwrap();
    drop(region);
    rig.fake.release();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_LOC_PROT_ERR)), (2, Some(IBV_WC_WR_FLUSH_ERR))]);
}

#[test]
fn a_receive_buffer_that_ends_before_a_write_is_not_written_to() {
    let rig = Rig::new();
    let receive_buffer = rig.domain.receive_buffer(size(LENGTH)).unwrap();
    let remote = receive_buffer.remote(0).unwrap();
    rig.fake.hold();
    rig.sender.post_writes(&[Write { remote, ..rig.sge(1, 0..LENGTH) }]).unwrap();
    drop(receive_buffer);
    rig.fake.release();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_REM_ACCESS_ERR))]);
}

#[test]
fn received_bytes_keep_their_buffer_writable_until_dropped() {
    let rig = Rig::new();
    let receive_buffer = rig.domain.receive_buffer(size(LENGTH)).unwrap();
    let remote = receive_buffer.remote(0).unwrap();
    let received = receive_buffer.received(0..1).unwrap();
    drop(receive_buffer);
    rig.sender.post_writes(&[Write { remote, ..rig.sge(1, 0..LENGTH) }]).unwrap();
    assert_eq!((&*received, outcomes(&rig.sent)), (&pattern(1)[..], vec![(1, None)]));
    drop(received);
    rig.sender.post_writes(&[Write { remote, ..rig.sge(2, 0..LENGTH) }]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(2, Some(IBV_WC_REM_ACCESS_ERR))]);
}

#[test]
fn a_destroyed_peer_does_not_answer() {
    let rig = Rig::new();
    drop(rig.receiver);
    let write = Write { sge: Some((&rig.region, 0..1)), ..bare(1, rig.receive_buffer.remote(0).unwrap()) };
    rig.sender.post_writes(&[write]).unwrap();
    assert_eq!(outcomes(&rig.sent), [(1, Some(IBV_WC_RETRY_EXC_ERR))]);
}

#[test]
fn an_overflowing_queue_fails() {
    let rig = Rig::new();
    let queue = CompletionQueue::new(&rig.context, 2).unwrap();
    let (sender, _receiver) = connect((&rig.domain, &queue), (&rig.domain, &rig.received));
    sender.post_writes(&[rig.sge(1, 0..1), rig.sge(2, 0..1)]).unwrap();
    assert_eq!(outcomes(&queue), [(1, None), (2, None)]);
    sender.post_writes(&[rig.sge(1, 0..1), rig.sge(2, 0..1), rig.sge(3, 0..1)]).unwrap();
    let error = queue.poll().unwrap_err();
    assert_eq!((error.call(), error.errno()), (Call::POLL, Some(libc::EIO)));
    assert!(error.hint().unwrap().contains("overflowed"));
    assert_fails(queue.poll_batch(&mut Vec::new()), Call::POLL, libc::EIO);
}

#[test]
fn completions_beyond_the_given_room_are_not_read() {
    let rig = Rig::new();
    rig.fake.configure(|world| world.overfills_polls = true);
    assert_fails(rig.sent.poll(), Call::POLL, libc::EIO);
    assert_fails(rig.sent.poll_batch(&mut Vec::new()), Call::POLL, libc::EIO);
}
