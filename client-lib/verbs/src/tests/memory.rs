use std::ops::Range;

use crate::fake::{Fake, Verb};
use crate::{Call, Pages, ProtectionDomain, Write};

use super::{LENGTH, Rig, assert_fails, pattern, size};

/// Offsets and lengths that are not within memory of [`LENGTH`] bytes.
const OUTSIDE: [(usize, usize); 6] =
    [(0, LENGTH + 1), (LENGTH, 1), (LENGTH + 1, 0), (usize::MAX, 0), (usize::MAX, 1), (usize::MAX - 1, 3)];

#[test]
fn a_region_accepts_ranges_within_it_only() {
    let rig = Rig::new();
    let write = |(offset, length)| rig.region.write(offset, &vec![1; length]);
    for inside in [(0, LENGTH), (LENGTH, 0), (LENGTH - 1, 1), (0, 0)] {
        write(inside).unwrap();
    }
    for outside in OUTSIDE {
        assert_fails(write(outside), Call::REACH, libc::EINVAL);
    }
}

#[test]
fn a_receive_buffer_returns_ranges_within_it_only() {
    let rig = Rig::new();
    for (offset, length) in [(0, LENGTH), (LENGTH, 0), (LENGTH - 1, 1)] {
        rig.receive_buffer.read(offset, &mut vec![1; length]).unwrap();
        assert_eq!(rig.receive_buffer.received(offset..offset + length).unwrap().len(), length);
        rig.receive_buffer.remote(offset).unwrap();
    }
    for (offset, length) in OUTSIDE {
        assert_fails(rig.receive_buffer.read(offset, &mut vec![0; length]), Call::REACH, libc::EINVAL);
        let received = rig.receive_buffer.received(offset..offset.wrapping_add(length));
        assert_fails(received, Call::REACH, libc::EINVAL);
    }
    assert_fails(rig.receive_buffer.remote(LENGTH + 1), Call::REACH, libc::EINVAL);
    assert_fails(rig.receive_buffer.received(Range { start: 2, end: 1 }), Call::REACH, libc::EINVAL);
}

#[test]
fn memory_is_zero_at_first() {
    let rig = Rig::new();
    let region = rig.domain.memory_region(size(LENGTH)).unwrap();
    rig.region.write(0, &[0xff; LENGTH]).unwrap();
    rig.sender.post_writes(&[rig.sge(1, 0..LENGTH)]).unwrap();
    assert_eq!(rig.received(), [0xff; LENGTH]);
    let sge = Some((&region, 0..LENGTH));
    rig.sender.post_writes(&[Write { sge, ..rig.sge(2, 0..0) }]).unwrap();
    assert_eq!(rig.received(), [0; LENGTH]);
    assert_eq!(&*rig.domain.receive_buffer(size(LENGTH)).unwrap().received(0..LENGTH).unwrap(), [0; LENGTH]);
}

#[test]
fn received_bytes_outlive_everything_that_brought_them() {
    let rig = Rig::new();
    rig.sender.post_writes(&[rig.sge(1, 0..LENGTH)]).unwrap();
    let received = rig.receive_buffer.received(3..LENGTH).unwrap();
    let again = received.clone();
    let fake = rig.end();
    assert_eq!(fake.remaining(), "1 device 1 context 1 domain 1 region ");
    assert_eq!(&*received, &pattern(LENGTH)[3..]);
    drop(received);
    assert_eq!(&*again, &pattern(LENGTH)[3..]);
    drop(again);
}

#[test]
fn peers_reach_receive_buffers_only() {
    let fake = Fake::new();
    let domain = ProtectionDomain::new(&fake.open()).unwrap();
    let (_region, pages) = (domain.memory_region(size(9)).unwrap(), Pages::new(size(9)).unwrap());
    pages.register(&domain).unwrap();
    assert_eq!((fake.registrations(), fake.reachable()), (2, 0));
    let _landing = domain.receive_buffer(size(9)).unwrap();
    assert_eq!((fake.registrations(), fake.reachable()), (3, 1));
}

#[test]
fn dropped_memory_is_freed() {
    let fake = Fake::new();
    let domain = ProtectionDomain::new(&fake.open()).unwrap();
    let before = address_space();
    for _ in 0..64 {
        // Nothing touches the memory, so the machine need not provide it.
        drop(domain.memory_region(size(256 << 20)).unwrap());
        drop(domain.receive_buffer(size(256 << 20)).unwrap());
        fake.fail(Verb::RegMr, libc::ENOMEM);
        assert_fails(domain.memory_region(size(256 << 20)), Call::REGISTER, libc::ENOMEM);
        fake.stop_failing();
    }
    // Other tests that run at the same time use far less.
    assert!(address_space() < before + (8 << 30));
}

/// Returns the size of this process's address space in bytes.
fn address_space() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn a_failed_registration_has_a_hint() {
    let fake = Fake::new();
    let domain = ProtectionDomain::new(&fake.open()).unwrap();
    let hint = |errno| {
        fake.fail(Verb::RegMr, errno);
        let (region, receive_buffer) =
            (domain.memory_region(size(1)).unwrap_err(), domain.receive_buffer(size(1)).unwrap_err());
        assert_eq!(region.to_string(), receive_buffer.to_string());
        assert!(region.to_string().starts_with("fake_0: cannot register memory: "), "{region}");
        assert_eq!((region.call(), region.errno()), (Call::REGISTER, Some(errno)));
        region.hint()
    };
    assert!(hint(libc::ENOMEM).unwrap().contains("memlock"));
    assert!(hint(libc::EFAULT).unwrap().contains("nvidia-peermem"));
    assert!(hint(libc::EAGAIN).unwrap().contains("no keys for memory left"));
    assert_eq!(hint(libc::EOPNOTSUPP), None);
    assert_eq!(fake.registrations(), 0);
}

#[test]
fn allocating_more_memory_than_exists_is_an_error() {
    let fake = Fake::new();
    let domain = ProtectionDomain::new(&fake.open()).unwrap();
    let error = domain.memory_region(size(isize::MAX as usize & !0xfff)).unwrap_err();
    assert_eq!((error.call(), error.errno()), (Call::ALLOCATE, Some(libc::ENOMEM)));
    assert!(error.hint().unwrap().contains("memory"));
}
