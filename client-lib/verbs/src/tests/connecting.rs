use std::net::Ipv6Addr;

use rdma_sys::ibv_mtu;

use crate::fake::{Fake, Verb, gid};
use crate::{
    Call, Capacities, Class, CompletionQueue, Context, Path, ProtectionDomain, QueuePairAddress,
    UnconnectedQueuePair, Write,
};

use super::{CAPACITIES, LENGTH, MAX_INLINE_DATA, PATH, Rig, assert_fails, end, outcomes, size};

struct Ends {
    one: UnconnectedQueuePair,
    other: UnconnectedQueuePair,
    queue: CompletionQueue,
    domain: ProtectionDomain,
    context: Context,
    fake: Fake,
}

fn ends() -> Ends {
    let fake = Fake::new();
    let context = fake.open();
    let (domain, queue) =
        (ProtectionDomain::new(&context).unwrap(), CompletionQueue::new(&context, 16).unwrap());
    let [one, other] = [(); 2].map(|()| UnconnectedQueuePair::new(&domain, &queue, CAPACITIES).unwrap());
    Ends { one, other, queue, domain, context, fake }
}

#[test]
fn devices_and_ports_are_listed_with_their_attributes() {
    let fake = Fake::new();
    fake.configure(|world| {
        world.devices = vec!["fake_0", "fake_1"];
        (world.is_active, world.mtu, world.lid) = (false, ibv_mtu::IBV_MTU_4096, 3);
    });
    let devices = fake.library().devices().unwrap();
    assert_eq!(format!("{devices:?}"), r#"[Device("fake_0"), Device("fake_1")]"#);
    let context = devices[1].open().unwrap();
    drop(devices);
    let port = context.query_port(1).unwrap();
    assert_eq!((context.name(), port.is_active, port.mtu, port.lid), ("fake_1", false, 4096, 3));
    assert_fails(context.query_port(2), Call::QUERY, libc::EINVAL);
    // A GID without an interface, GIDs with one, an index that does not exist, and a port that does
    // not.
    assert_eq!(context.interface_index(1, 0), None);
    fake.configure(|world| world.interface = 42);
    assert_eq!(
        [(1, 1), (1, 2), (2, 1)].map(|(port, gid_index)| context.interface_index(port, gid_index)),
        [Some(42), None, None]
    );
    drop(context);
    fake.configure(|world| world.devices = Vec::new());
    assert!(fake.library().devices().unwrap().is_empty());
    fake.fail(Verb::List, libc::ENOSYS);
    let error = fake.library().devices().unwrap_err();
    assert_eq!(error.to_string(), "cannot list RDMA devices: Function not implemented (os error 38)");
    assert!(error.hint().unwrap().contains("kernel has no RDMA"));
}

#[test]
fn a_path_that_the_device_does_not_have_is_an_error() {
    let paths = [
        (Path { port: 2, ..PATH }, Call::INIT, libc::EINVAL),
        (Path { gid_index: 9, ..PATH }, Call::READY_TO_RECEIVE, libc::EINVAL),
        (Path { mtu: 2048, ..PATH }, Call::READY_TO_RECEIVE, libc::EINVAL),
    ];
    for (path, call, errno) in paths {
        let ends = ends();
        assert_fails(ends.one.connect(path, end(&ends.other)), call, errno);
        assert!(ends.fake.remaining().ends_with(" 1 pair "), "{}", ends.fake.remaining());
    }
    let ends = ends();
    let peer = QueuePairAddress { gid: "fd00::2".parse().unwrap(), ..end(&ends.other) };
    let error = ends.one.connect(PATH, peer).unwrap_err();
    assert_eq!((error.call(), error.errno()), (Call::READY_TO_RECEIVE, Some(libc::ENETUNREACH)));
    assert!(error.hint().unwrap().contains("no route to the peer's GID"));
}

#[test]
fn pairs_without_gids_connect_by_local_identifiers() {
    for (lid, is_heard) in [(7, true), (8, false)] {
        let rig = ends();
        let path = Path { is_global: false, gid_index: 99, ..PATH };
        let ends = [&rig.one, &rig.other].map(|unconnected| unconnected.address(gid(), lid));
        let one = rig.one.connect(path, ends[1]).unwrap();
        let _other = rig.other.connect(path, ends[0]).unwrap();
        let (region, receive_buffer) =
            (rig.domain.memory_region(size(9)).unwrap(), rig.domain.receive_buffer(size(9)).unwrap());
        let sge = Some((&region, 0..9));
        one.post_writes(&[Write { sge, ..super::bare(1, receive_buffer.remote(0).unwrap()) }]).unwrap();
        assert_eq!(matches!(outcomes(&rig.queue)[..], [(1, None)]), is_heard);
    }
}

/// Ports of virtual functions under InfiniBand typically require GIDs, even within their subnet.
#[test]
fn a_port_that_requires_gids_gets_them_if_both_ends_have_one() {
    for peer in [gid(), Ipv6Addr::UNSPECIFIED] {
        let rig = ends();
        rig.fake.configure(|world| world.needs_gids = true);
        let path = Path { is_global: Path::has_gids(gid(), peer), ..PATH };
        let connected = rig.one.connect(path, rig.other.address(peer, 7));
        if peer == gid() {
            connected.unwrap();
            continue;
        }
        let error = connected.unwrap_err();
        assert_eq!((error.call(), error.errno()), (Call::READY_TO_RECEIVE, Some(libc::EINVAL)));
        assert!(error.hint().unwrap().contains("GRH required"));
    }
    let none = Ipv6Addr::UNSPECIFIED;
    assert!(!Path::has_gids(none, gid()) && !Path::has_gids(none, none));
}

/// Each side's own class counts. Packets without GIDs have no field for the traffic class.
#[test]
fn each_side_sets_the_class_of_its_own_packets() {
    let (class, peer) = (Class { service_level: 5, traffic_class: 106 }, Class::default());
    for (is_global, expected) in [(true, (5, 106)), (false, (5, 0))] {
        let rig = ends();
        let ends = [&rig.one, &rig.other].map(|unconnected| unconnected.address(gid(), 7));
        let _one = rig.one.connect(Path { class, is_global, ..PATH }, ends[1]).unwrap();
        let _other = rig.other.connect(Path { class: peer, is_global, ..PATH }, ends[0]).unwrap();
        let mut classes = rig.fake.classes();
        classes.sort_unstable();
        assert_eq!(classes, [(0, 0), expected]);
    }
}

/// A peer's handshake may contain any number; bits that do not fit in a packet are dropped.
#[test]
fn sequence_numbers_have_24_bits() {
    for _ in 0..16 {
        let ends = ends();
        assert!(end(&ends.one).psn < 1 << 24);
        let peer = end(&ends.other);
        ends.one.connect(PATH, QueuePairAddress { psn: peer.psn | 0xff00_0000, ..peer }).unwrap();
    }
}

#[test]
fn a_queue_of_another_context_is_refused_before_the_device_sees_it() {
    let ends = ends();
    let foreign = CompletionQueue::new(&ends.fake.open(), 16).unwrap();
    let before = ends.fake.calls().len();
    assert_fails(
        UnconnectedQueuePair::new(&ends.domain, &foreign, CAPACITIES),
        Call::QUEUE_PAIR,
        libc::EINVAL,
    );
    assert_eq!(ends.fake.calls().len(), before);
}

#[test]
fn a_queue_without_capacity_is_refused() {
    let ends = ends();
    assert_fails(CompletionQueue::new(&ends.context, 0), Call::COMPLETION_QUEUE, libc::EINVAL);
}

/// One device takes less inline data, another gives more than was requested.
#[test]
fn inline_data_is_limited_to_what_the_device_takes() {
    for (most, least, longest) in
        [(MAX_INLINE_DATA - 1, 0, 0), (0, 0, 0), (512, 300, 300), (512, 0, MAX_INLINE_DATA)]
    {
        let fake = Fake::new();
        fake.configure(|world| world.inline = (most as u32, least as u32));
        let rig = Rig::with(fake);
        rig.fake.hold();
        let writes = [rig.sge(1, 0..longest), rig.sge(2, 1000..1000 + longest + 1)];
        rig.sender.post_writes(&writes).unwrap();
        rig.region.write(0, &[0xee; LENGTH]).unwrap();
        rig.fake.release();
        assert!(!rig.received()[..longest].contains(&0xee));
        assert_eq!(rig.received()[1000..1000 + longest + 1], vec![0xee; longest + 1]);
        assert_eq!(outcomes(&rig.sent), [(1, None), (2, None)]);
    }
}

#[test]
fn a_pair_that_the_device_cannot_create_is_an_error() {
    let ends = ends();
    let before = ends.fake.calls().len();
    ends.fake.fail(Verb::CreateQp, libc::ENOMEM);
    let capacities = Capacities { send: u16::MAX, receive: u16::MAX };
    let error = UnconnectedQueuePair::new(&ends.domain, &ends.queue, capacities).unwrap_err();
    assert_eq!((error.call(), error.errno()), (Call::QUEUE_PAIR, Some(libc::ENOMEM)));
    assert!(error.hint().unwrap().contains("queues that deep"));
    // The second attempt is without inline data.
    assert_eq!(ends.fake.calls()[before..], [Verb::CreateQp; 2]);
}
