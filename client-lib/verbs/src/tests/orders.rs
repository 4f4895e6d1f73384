use crate::fake::Fake;
use crate::{
    ChannelEvent, CompletionChannel, CompletionQueue, Context, Device, MemoryRegion, Pages, ProtectionDomain,
    QueuePair, ReceiveBuffer, ReceivedBytes, UnconnectedQueuePair, Write, ZeroCopy,
};

use super::{CAPACITIES, PATH, bare, connect, end, size};

/// An object that is to be dropped.
#[expect(dead_code, reason = "only held")]
enum Handle {
    Device(Device),
    Context(Context),
    CompletionChannel(CompletionChannel),
    CompletionQueue(CompletionQueue),
    ProtectionDomain(ProtectionDomain),
    MemoryRegion(MemoryRegion),
    ReceiveBuffer(ReceiveBuffer),
    ReceivedBytes(ReceivedBytes),
    Pages(Pages),
    UnconnectedQueuePair(UnconnectedQueuePair),
    QueuePair(QueuePair),
}

/// Calls `each` with each order of `count` indexes.
fn each_order(count: usize, mut each: impl FnMut(&[usize])) {
    fn exchange(order: &mut [usize], fixed: usize, each: &mut impl FnMut(&[usize])) {
        if fixed == order.len() {
            return each(order);
        }
        for next in fixed..order.len() {
            order.swap(fixed, next);
            exchange(order, fixed + 1, each);
            order.swap(fixed, next);
        }
    }
    let mut order: Vec<_> = (0..count).collect();
    exchange(&mut order, 0, &mut each);
}

/// Drops the objects in each order. No object may be left, and none may be used after its end.
fn in_each_order<const N: usize>(make: impl Fn(&Fake) -> [Handle; N]) {
    let fake = Fake::new();
    each_order(N, |order| {
        let mut handles = make(&fake).map(Some);
        for &index in order {
            handles[index] = None;
        }
        fake.wait_until(str::is_empty);
        let faults = fake.faults();
        assert!(faults.is_empty(), "{order:?}: {faults:#?}");
    });
}

#[test]
fn each_order_visits_every_permutation() {
    let mut all = std::collections::HashSet::new();
    each_order(5, |order| assert!(all.insert(order.to_vec())));
    assert_eq!(all.len(), 120);
}

#[test]
fn a_connection_ends_in_any_order() {
    in_each_order(|fake| {
        let context = fake.open();
        let channel = CompletionChannel::new(&context).unwrap();
        let queue = CompletionQueue::with_channel(&channel, 1, 16).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let (region, receive_buffer) =
            (domain.memory_region(size(9)).unwrap(), domain.receive_buffer(size(9)).unwrap());
        let (one, other) = connect((&domain, &queue), (&domain, &queue));
        queue.arm().unwrap();
        let sge = Some((&region, 0..9));
        one.post_writes(&[Write { sge, ..bare(1, receive_buffer.remote(0).unwrap()) }]).unwrap();
        assert_eq!(channel.try_wait().unwrap(), ChannelEvent::Completion(1));
        let received = receive_buffer.received(0..9).unwrap();
        drop((context, receive_buffer));
        [
            Handle::CompletionChannel(channel),
            Handle::CompletionQueue(queue),
            Handle::ProtectionDomain(domain),
            Handle::MemoryRegion(region),
            Handle::ReceivedBytes(received),
            Handle::QueuePair(one),
            Handle::QueuePair(other),
        ]
    });
}

/// Some of the work has not been read, polled or reported.
#[test]
fn a_connection_ends_in_any_order_with_work_under_way() {
    in_each_order(|fake| {
        let context = fake.open();
        let channel = CompletionChannel::new(&context).unwrap();
        let queue = CompletionQueue::with_channel(&channel, 1, 16).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let (region, receive_buffer) =
            (domain.memory_region(size(999)).unwrap(), domain.receive_buffer(size(999)).unwrap());
        let (one, other) = connect((&domain, &queue), (&domain, &queue));
        queue.arm().unwrap();
        other.post_receive(3).unwrap();
        let write =
            |id| Write { sge: Some((&region, 0..999)), ..bare(id, receive_buffer.remote(0).unwrap()) };
        one.post_writes(&[write(1)]).unwrap();
        fake.hold();
        one.post_writes(&[write(2), write(3)]).unwrap();
        [
            Handle::Context(context),
            Handle::CompletionChannel(channel),
            Handle::CompletionQueue(queue),
            Handle::MemoryRegion(region),
            Handle::ReceiveBuffer(receive_buffer),
            Handle::QueuePair(one),
        ]
    });
}

#[test]
fn unconnected_objects_end_in_any_order() {
    in_each_order(|fake| {
        let device = fake.library().devices().unwrap().remove(0);
        let context = device.open().unwrap();
        let (domain, queue) =
            (ProtectionDomain::new(&context).unwrap(), CompletionQueue::new(&context, 16).unwrap());
        let [one, other] = [(); 2].map(|()| UnconnectedQueuePair::new(&domain, &queue, CAPACITIES).unwrap());
        let pair = one.connect(PATH, end(&other)).unwrap();
        [
            Handle::Device(device),
            Handle::Context(context),
            Handle::ProtectionDomain(domain),
            Handle::CompletionQueue(queue),
            Handle::UnconnectedQueuePair(other),
            Handle::QueuePair(pair),
        ]
    });
}

/// Pages are freed on a background thread.
#[test]
fn pages_end_in_any_order() {
    in_each_order(|fake| {
        let context = fake.open();
        let (domain, other) =
            (ProtectionDomain::new(&context).unwrap(), ProtectionDomain::new(&context).unwrap());
        let queue = CompletionQueue::new(&context, 16).unwrap();
        let receive_buffer = domain.receive_buffer(size(9)).unwrap();
        let (one, _) = connect((&domain, &queue), (&domain, &queue));
        let pages = Pages::new(size(9)).unwrap();
        pages.register(&domain).unwrap();
        pages.register(&other).unwrap();
        fake.hold();
        one.post_writes(&[Write {
            zero_copy: Some((ZeroCopy::Pages(&pages), 0..9)),
            ..bare(1, receive_buffer.remote(0).unwrap())
        }])
        .unwrap();
        drop(receive_buffer);
        [
            Handle::Context(context),
            Handle::ProtectionDomain(domain),
            Handle::ProtectionDomain(other),
            Handle::CompletionQueue(queue),
            Handle::Pages(pages),
            Handle::QueuePair(one),
        ]
    });
}
