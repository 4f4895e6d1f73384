use std::collections::HashSet;

use crate::fake::{Fake, Verb};
use crate::{
    Call, ChannelEvent, CompletionChannel, CompletionQueue, Context, Error, Pages, ProtectionDomain,
    UnconnectedQueuePair, Write, ZeroCopy,
};

use super::{CAPACITIES, PATH, Rig, bare, end, size};

/// Makes one of each call that can fail, in the order in which they are needed.
fn all(fake: &Fake) -> Result<(), Error> {
    let devices = fake.library().devices()?;
    let context: Context = devices[0].open()?;
    let port = context.query_port(1)?;
    let domain = ProtectionDomain::new(&context)?;
    let (region, receive_buffer) = (domain.memory_region(size(9))?, domain.receive_buffer(size(9))?);
    let pages = Pages::new(size(9)).unwrap();
    pages.register(&domain)?;
    let channel = CompletionChannel::new(&context)?;
    let queue = CompletionQueue::with_channel(&channel, 1, 16)?;
    let (one, other) = (
        UnconnectedQueuePair::new(&domain, &queue, CAPACITIES)?,
        UnconnectedQueuePair::new(&domain, &queue, CAPACITIES)?,
    );
    let ends = (end(&one), end(&other));
    let (one, other) = (one.connect(PATH, ends.1)?, other.connect(PATH, ends.0)?);
    assert_eq!(port.mtu, PATH.mtu);
    queue.arm()?;
    other.post_receive(1)?;
    let (sge, zero_copy) = (Some((&region, 0..4)), Some((ZeroCopy::Pages(&pages), 4..9)));
    one.post_writes(&[Write { sge, zero_copy, immediate: Some(1), ..bare(2, receive_buffer.remote(0)?) }])?;
    assert_eq!(channel.wait()?, ChannelEvent::Completion(1));
    let (first, second) = (queue.poll()?, queue.poll()?);
    assert_eq!((first.unwrap().id, second.unwrap().id), (1, 2));
    Ok(())
}

/// Returns the [`Call`] that an error names if this verb of the fake device fails. `Verb::Modify`
/// has three, one for each state that a queue pair goes through, in that order.
fn calls(verb: Verb) -> &'static [Call] {
    match verb {
        Verb::List => &[Call::LIST],
        Verb::Open => &[Call::OPEN],
        Verb::Query => &[Call::QUERY],
        Verb::AllocPd => &[Call::PROTECTION_DOMAIN],
        Verb::RegMr => &[Call::REGISTER],
        Verb::RegDmaBuf => &[Call::DMA_BUF],
        Verb::CreateChannel => &[Call::COMPLETION_CHANNEL],
        Verb::GetEvent => &[Call::WAIT],
        Verb::CreateCq => &[Call::COMPLETION_QUEUE],
        Verb::Poll => &[Call::POLL],
        Verb::Arm => &[Call::ARM],
        Verb::CreateQp => &[Call::QUEUE_PAIR],
        Verb::Modify => &[Call::INIT, Call::READY_TO_RECEIVE, Call::READY_TO_SEND],
        Verb::PostSend => &[Call::SEND],
        Verb::PostReceive => &[Call::RECEIVE],
    }
}

#[test]
fn a_failure_of_any_call_leaves_nothing_behind() {
    let fake = Fake::new();
    all(&fake).unwrap();
    fake.wait_until(str::is_empty);
    let verbs = fake.calls();
    assert_eq!(verbs.iter().collect::<HashSet<_>>().len(), 14, "of each kind one at least");
    for errno in [libc::ENOMEM, libc::EOPNOTSUPP, libc::ENOSYS, libc::EFAULT, libc::EIO] {
        for (number, &verb) in verbs.iter().enumerate() {
            let fake = Fake::new();
            fake.fail_call(number, errno);
            let outcome = all(&fake);
            fake.wait_until(str::is_empty);
            if verb == Verb::CreateQp {
                // It is tried again without inline data.
                outcome.unwrap();
                continue;
            }
            let error = outcome.unwrap_err();
            let same = verbs[..number].iter().filter(|&&before| before == verb).count();
            let call = calls(verb)[same % calls(verb).len()];
            // Polling does not tell the reason.
            let errno = if verb == Verb::Poll { libc::EIO } else { errno };
            assert_eq!((error.call(), error.errno()), (call, Some(errno)), "call {number}: {error}");
            assert_eq!(error.to_string().starts_with("fake_0: cannot "), verb != Verb::List, "{error}");
        }
    }
}

#[test]
fn a_call_that_always_fails_leaves_nothing_behind() {
    let fake = Fake::new();
    all(&fake).unwrap();
    for verb in fake.calls() {
        let fake = Fake::new();
        fake.fail(verb, libc::EOPNOTSUPP);
        let error = all(&fake).unwrap_err();
        fake.wait_until(str::is_empty);
        assert_eq!(error.call(), calls(verb)[0]);
    }
}

/// Fails each constructor alone, while the other objects exist.
#[test]
fn a_failed_constructor_leaves_other_objects_as_they_are() {
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let pages = Pages::new(size(9)).unwrap();
    let before = rig.fake.remaining();
    let fails = |verb, make: &dyn Fn() -> Result<(), Error>| {
        rig.fake.fail(verb, libc::ENOMEM);
        assert_eq!(make().unwrap_err().errno(), Some(libc::ENOMEM));
        assert_eq!(rig.fake.remaining(), before);
        rig.fake.stop_failing();
        make().unwrap();
    };
    fails(Verb::Open, &|| rig.fake.library().devices()?[0].open().map(drop));
    fails(Verb::AllocPd, &|| ProtectionDomain::new(&rig.context).map(drop));
    fails(Verb::RegMr, &|| rig.domain.memory_region(size(9)).map(drop));
    fails(Verb::RegMr, &|| rig.domain.receive_buffer(size(9)).map(drop));
    fails(Verb::CreateChannel, &|| CompletionChannel::new(&rig.context).map(drop));
    fails(Verb::CreateCq, &|| CompletionQueue::new(&rig.context, 1).map(drop));
    fails(Verb::CreateCq, &|| CompletionQueue::with_channel(&channel, 1, 1).map(drop));
    fails(Verb::CreateQp, &|| UnconnectedQueuePair::new(&rig.domain, &rig.sent, CAPACITIES).map(drop));
    fails(Verb::RegMr, &|| pages.register(&rig.domain));
}
