//! Tests of the fake device itself: it detects what it is meant to detect.
#![allow(unsafe_code, reason = "does what the wrappers never do")]

use super::{Fake, Verb};
use crate::{Call, CompletionChannel, CompletionQueue, ProtectionDomain};

#[test]
fn destroying_an_object_that_another_needs_is_a_fault() {
    let fake = Fake::new();
    let (library, context) = (fake.library(), fake.open());
    let (domain, channel) =
        (ProtectionDomain::new(&context).unwrap(), CompletionChannel::new(&context).unwrap());
    let region = domain.memory_region(9.try_into().unwrap()).unwrap();
    let queue = CompletionQueue::with_channel(&channel, 1, 1).unwrap();
    let pair =
        crate::UnconnectedQueuePair::new(&domain, &queue, crate::Capacities { send: 1, receive: 1 }).unwrap();
    // SAFETY: the fake refuses to destroy these, since other objects need them.
    let outcomes = unsafe {
        [
            (library.close_device)(context.raw()),
            (library.dealloc_pd)(domain.raw()),
            (library.destroy_comp_channel)(channel.raw()),
            (library.destroy_cq)(queue.raw()),
        ]
    };
    assert_eq!(outcomes, [libc::EBUSY; 4]);
    let faults = fake.faults();
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(faults.iter().all(|fault| fault.contains("is destroyed before its")), "{faults:?}");
    drop((pair, region));
}

#[test]
fn destroying_an_object_twice_or_never_is_a_fault() {
    let fake = Fake::new();
    let (library, context) = (fake.library(), fake.open());
    // SAFETY: the context is open.
    let domain = unsafe { (library.alloc_pd)(context.raw()) };
    drop(context);
    assert_eq!(fake.faults(), ["a context is destroyed before its domain"]);
    assert_eq!(fake.remaining(), "1 device 1 context 1 domain ");
    // SAFETY: nothing uses it; the second time, the fake only compares the address.
    let outcomes = unsafe { [(library.dealloc_pd)(domain), (library.dealloc_pd)(domain)] };
    assert_eq!(outcomes, [0, libc::EBADF]);
    assert_eq!(fake.faults(), ["a domain is used after its end"]);
    let contexts: Vec<_> = super::state().contexts.all(fake.0).map(super::Made::raw).collect();
    // SAFETY: the context that could not be closed before.
    assert_eq!(unsafe { (library.close_device)(contexts[0]) }, 0);
}

#[test]
fn freeing_memory_before_its_registration_ends_is_a_fault() {
    let fake = Fake::new();
    let domain = ProtectionDomain::new(&fake.open()).unwrap();
    let memory = crate::memory::Memory::new(4096.try_into().unwrap()).unwrap();
    let (start, length) = (memory.start(), memory.length());
    let region = crate::memory::register(&domain, Call::REGISTER, start, length, 0).unwrap();
    drop(memory);
    // SAFETY: registered, and not in use.
    assert_eq!(unsafe { (fake.library().dereg_mr)(region.as_ptr()) }, 0);
    assert_eq!(fake.faults(), ["memory is given back before its registration has ended"]);
}

#[test]
#[should_panic(expected = "against the rules")]
fn a_fault_fails_its_test() {
    let fake = Fake::new();
    super::fault(fake.0, "a fault");
}

#[test]
fn calls_are_recorded_and_fail_as_requested() {
    let fake = Fake::new();
    fake.fail_call(1, libc::EPERM);
    let devices = fake.library().devices().unwrap();
    let error = devices[0].open().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EPERM));
    assert!(error.hint().unwrap().contains("device plugin"));
    drop(devices[0].open().unwrap());
    assert_eq!(fake.calls(), [Verb::List, Verb::Open, Verb::Open]);
}
