use std::collections::HashSet;

use crate::fake::{Fake, Verb};
use crate::{Call, Channel, Context, Domain, Error, Fresh, Lent, Pages, Queue, Report, Write};

use super::{DEPTHS, PATH, Rig, bare, end, size};

/// One of each call that can fail, in the order in which they are needed.
fn all(fake: &Fake) -> Result<(), Error> {
    let devices = fake.library().devices()?;
    let context: Context = devices[0].open()?;
    let port = context.port(1)?;
    let domain = Domain::new(&context)?;
    let (region, landing) = (domain.region(size(9))?, domain.landing(size(9))?);
    let pages = Pages::new(size(9)).unwrap();
    pages.register(&domain)?;
    let channel = Channel::new(&context)?;
    let queue = Queue::reporting(&channel, 1, 16)?;
    let (one, other) = (Fresh::new(&domain, &queue, DEPTHS)?, Fresh::new(&domain, &queue, DEPTHS)?);
    let ends = (end(&one), end(&other));
    let (one, other) = (one.connect(PATH, ends.1)?, other.connect(PATH, ends.0)?);
    assert_eq!(port.mtu, PATH.mtu);
    queue.arm()?;
    other.receive(1)?;
    let (part, lent) = (Some((&region, 0..4)), Some((Lent::Pages(&pages), 4..9)));
    one.write(&[Write { part, lent, immediate: Some(1), ..bare(2, landing.remote(0)?) }])?;
    assert_eq!(channel.wait()?, Report::Queue(1));
    let (first, second) = (queue.poll()?, queue.poll()?);
    assert_eq!((first.unwrap().id, second.unwrap().id), (1, 2));
    Ok(())
}

/// What errors say that this call was for; a pair's states in their order.
fn calls(verb: Verb) -> &'static [Call] {
    match verb {
        Verb::List => &[Call::List],
        Verb::Open => &[Call::Open],
        Verb::Query => &[Call::Query],
        Verb::AllocPd => &[Call::Domain],
        Verb::RegMr => &[Call::Register],
        Verb::RegDmaBuf => &[Call::DmaBuf],
        Verb::CreateChannel => &[Call::Channel],
        Verb::GetEvent => &[Call::Wait],
        Verb::CreateCq => &[Call::Queue],
        Verb::Poll => &[Call::Poll],
        Verb::Arm => &[Call::Arm],
        Verb::CreateQp => &[Call::Pair],
        Verb::Modify => &[Call::Init, Call::ReadyToReceive, Call::ReadyToSend],
        Verb::PostSend => &[Call::Send],
        Verb::PostReceive => &[Call::Receive],
    }
}

#[test]
fn whichever_call_fails_nothing_is_left() {
    let fake = Fake::new();
    all(&fake).unwrap();
    fake.until(str::is_empty);
    let verbs = fake.calls();
    assert_eq!(verbs.iter().collect::<HashSet<_>>().len(), 14, "of each kind one at least");
    for errno in [libc::ENOMEM, libc::EOPNOTSUPP, libc::ENOSYS, libc::EFAULT, libc::EIO] {
        for (number, &verb) in verbs.iter().enumerate() {
            let fake = Fake::new();
            fake.fail_one(number, errno);
            let outcome = all(&fake);
            fake.until(str::is_empty);
            if verb == Verb::CreateQp {
                // It is tried once more without what goes with requests.
                outcome.unwrap();
                continue;
            }
            let error = outcome.unwrap_err();
            let same = verbs[..number].iter().filter(|&&before| before == verb).count();
            let call = calls(verb)[same % calls(verb).len()];
            // Why polling fails is not told.
            let errno = if verb == Verb::Poll { libc::EIO } else { errno };
            assert_eq!((error.call(), error.errno()), (call, Some(errno)), "call {number}: {error}");
            assert_eq!(error.to_string().starts_with("fake_0: cannot "), verb != Verb::List, "{error}");
        }
    }
}

#[test]
fn a_kind_of_call_that_always_fails_leaves_nothing() {
    let fake = Fake::new();
    all(&fake).unwrap();
    for verb in fake.calls() {
        let fake = Fake::new();
        fake.fail(verb, libc::EOPNOTSUPP);
        let error = all(&fake).unwrap_err();
        fake.until(str::is_empty);
        assert_eq!(error.call(), calls(verb)[0]);
    }
}

/// Each constructor by itself, with the others' things kept.
#[test]
fn what_cannot_be_made_leaves_what_there_was() {
    let rig = Rig::new();
    let channel = Channel::new(&rig.context).unwrap();
    let pages = Pages::new(size(9)).unwrap();
    let before = rig.fake.left();
    let fails = |verb, make: &dyn Fn() -> Result<(), Error>| {
        rig.fake.fail(verb, libc::ENOMEM);
        assert_eq!(make().unwrap_err().errno(), Some(libc::ENOMEM));
        assert_eq!(rig.fake.left(), before);
        rig.fake.heal();
        make().unwrap();
    };
    fails(Verb::Open, &|| rig.fake.library().devices()?[0].open().map(drop));
    fails(Verb::AllocPd, &|| Domain::new(&rig.context).map(drop));
    fails(Verb::RegMr, &|| rig.domain.region(size(9)).map(drop));
    fails(Verb::RegMr, &|| rig.domain.landing(size(9)).map(drop));
    fails(Verb::CreateChannel, &|| Channel::new(&rig.context).map(drop));
    fails(Verb::CreateCq, &|| Queue::new(&rig.context, 1).map(drop));
    fails(Verb::CreateCq, &|| Queue::reporting(&channel, 1, 1).map(drop));
    fails(Verb::CreateQp, &|| Fresh::new(&rig.domain, &rig.sent, DEPTHS).map(drop));
    fails(Verb::RegMr, &|| pages.register(&rig.domain));
}
