use crate::fake::Fake;
use crate::{
    Channel, Context, Device, Domain, Fresh, Landed, Landing, Lent, Pages, Pair, Queue, Region, Report, Write,
};

use super::{DEPTHS, PATH, bare, connect, end, size};

/// Anything that has to be let go of.
#[expect(dead_code, reason = "only held")]
enum Handle {
    Device(Device),
    Context(Context),
    Channel(Channel),
    Queue(Queue),
    Domain(Domain),
    Region(Region),
    Landing(Landing),
    Landed(Landed),
    Pages(Pages),
    Fresh(Fresh),
    Pair(Pair),
}

/// Calls for each order of so many things.
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

/// Lets go of things in each order, and expects that nothing is left, and that nothing was needed that was gone.
fn in_each_order<const N: usize>(make: impl Fn(&Fake) -> [Handle; N]) {
    let fake = Fake::new();
    each_order(N, |order| {
        let mut handles = make(&fake).map(Some);
        for &index in order {
            handles[index] = None;
        }
        fake.until(str::is_empty);
        let faults = fake.faults();
        assert!(faults.is_empty(), "{order:?}: {faults:#?}");
    });
}

#[test]
fn orders_are_all_there_are() {
    let mut all = std::collections::HashSet::new();
    each_order(5, |order| assert!(all.insert(order.to_vec())));
    assert_eq!(all.len(), 120);
}

#[test]
fn a_connection_ends_in_any_order() {
    in_each_order(|fake| {
        let context = fake.open();
        let channel = Channel::new(&context).unwrap();
        let queue = Queue::reporting(&channel, 1, 16).unwrap();
        let domain = Domain::new(&context).unwrap();
        let (region, landing) = (domain.region(size(9)).unwrap(), domain.landing(size(9)).unwrap());
        let (one, other) = connect((&domain, &queue), (&domain, &queue));
        queue.arm().unwrap();
        let part = Some((&region, 0..9));
        one.write(&[Write { part, ..bare(1, landing.remote(0).unwrap()) }]).unwrap();
        assert_eq!(channel.try_wait().unwrap(), Report::Queue(1));
        let landed = landing.landed(0..9).unwrap();
        drop((context, landing));
        [
            Handle::Channel(channel),
            Handle::Queue(queue),
            Handle::Domain(domain),
            Handle::Region(region),
            Handle::Landed(landed),
            Handle::Pair(one),
            Handle::Pair(other),
        ]
    });
}

/// Some of it has not been read, polled or heard of.
#[test]
fn a_connection_ends_in_any_order_with_work_under_way() {
    in_each_order(|fake| {
        let context = fake.open();
        let channel = Channel::new(&context).unwrap();
        let queue = Queue::reporting(&channel, 1, 16).unwrap();
        let domain = Domain::new(&context).unwrap();
        let (region, landing) = (domain.region(size(999)).unwrap(), domain.landing(size(999)).unwrap());
        let (one, other) = connect((&domain, &queue), (&domain, &queue));
        queue.arm().unwrap();
        other.receive(3).unwrap();
        let write = |id| Write { part: Some((&region, 0..999)), ..bare(id, landing.remote(0).unwrap()) };
        one.write(&[write(1)]).unwrap();
        fake.hold();
        one.write(&[write(2), write(3)]).unwrap();
        [
            Handle::Context(context),
            Handle::Channel(channel),
            Handle::Queue(queue),
            Handle::Region(region),
            Handle::Landing(landing),
            Handle::Pair(one),
        ]
    });
}

#[test]
fn what_is_not_connected_ends_in_any_order() {
    in_each_order(|fake| {
        let device = fake.library().devices().unwrap().remove(0);
        let context = device.open().unwrap();
        let (domain, queue) = (Domain::new(&context).unwrap(), Queue::new(&context, 16).unwrap());
        let [one, other] = [(); 2].map(|()| Fresh::new(&domain, &queue, DEPTHS).unwrap());
        let pair = one.connect(PATH, end(&other)).unwrap();
        [
            Handle::Device(device),
            Handle::Context(context),
            Handle::Domain(domain),
            Handle::Queue(queue),
            Handle::Fresh(other),
            Handle::Pair(pair),
        ]
    });
}

/// Pages end in a thread of their own.
#[test]
fn pages_end_in_any_order() {
    in_each_order(|fake| {
        let context = fake.open();
        let (domain, other) = (Domain::new(&context).unwrap(), Domain::new(&context).unwrap());
        let queue = Queue::new(&context, 16).unwrap();
        let landing = domain.landing(size(9)).unwrap();
        let (one, _) = connect((&domain, &queue), (&domain, &queue));
        let pages = Pages::new(size(9)).unwrap();
        pages.register(&domain).unwrap();
        pages.register(&other).unwrap();
        fake.hold();
        one.write(&[Write {
            lent: Some((Lent::Pages(&pages), 0..9)),
            ..bare(1, landing.remote(0).unwrap())
        }])
        .unwrap();
        drop(landing);
        [
            Handle::Context(context),
            Handle::Domain(domain),
            Handle::Domain(other),
            Handle::Queue(queue),
            Handle::Pages(pages),
            Handle::Pair(one),
        ]
    });
}
