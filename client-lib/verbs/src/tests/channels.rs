use std::sync::mpsc;
use std::thread;

use crate::fake::Verb;
use crate::{Call, ChannelEvent, CompletionChannel, CompletionQueue};

use super::{Rig, assert_fails, connect, outcomes};

#[test]
fn a_queue_reports_once_each_time_it_is_armed() {
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let queues = [3, u64::MAX].map(|number| CompletionQueue::with_channel(&channel, number, 16).unwrap());
    let (one, other) = connect((&rig.domain, &queues[0]), (&rig.domain, &queues[1]));
    // The queue is not armed.
    one.post_writes(&[rig.sge(1, 0..1)]).unwrap();
    assert_eq!(channel.try_wait().unwrap(), ChannelEvent::Nothing);
    queues[0].arm().unwrap();
    // Completions from before the queue was armed are not reported.
    assert_eq!(channel.try_wait().unwrap(), ChannelEvent::Nothing);
    one.post_writes(&[rig.sge(2, 0..1), rig.sge(3, 0..1)]).unwrap();
    assert_eq!(channel.try_wait().unwrap(), ChannelEvent::Completion(3));
    assert_eq!(channel.try_wait().unwrap(), ChannelEvent::Nothing);
    queues.iter().for_each(|queue| queue.arm().unwrap());
    other.post_writes(&[rig.sge(4, 0..1)]).unwrap();
    assert_eq!(channel.wait().unwrap(), ChannelEvent::Completion(u64::MAX));
    one.post_writes(&[rig.sge(5, 0..1)]).unwrap();
    assert_eq!(channel.wait().unwrap(), ChannelEvent::Completion(3));
    assert_eq!(outcomes(&queues[0]), [(1, None), (2, None), (3, None), (5, None)]);
}

#[test]
fn closing_a_channel_ends_the_wait() {
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let queue = CompletionQueue::with_channel(&channel, 3, 16).unwrap();
    let (one, _other) = connect((&rig.domain, &queue), (&rig.domain, &rig.received));
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| channel.wait().unwrap())).collect();
        channel.close();
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), ChannelEvent::Closed);
        }
    });
    // It makes a completion that would be reported.
    queue.arm().unwrap();
    one.post_writes(&[rig.sge(1, 0..1)]).unwrap();
    assert_eq!(
        (channel.wait().unwrap(), channel.try_wait().unwrap()),
        (ChannelEvent::Closed, ChannelEvent::Closed)
    );
}

#[test]
fn a_destroyed_queue_reports_nothing() {
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let queue = CompletionQueue::with_channel(&channel, 3, 16).unwrap();
    let (one, other) = connect((&rig.domain, &queue), (&rig.domain, &rig.received));
    queue.arm().unwrap();
    one.post_writes(&[rig.sge(1, 0..1)]).unwrap();
    drop((one, other, queue));
    assert_eq!(channel.try_wait().unwrap(), ChannelEvent::Nothing);
}

#[test]
fn a_failing_call_of_a_lost_device_ends_the_wait() {
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let queue = CompletionQueue::with_channel(&channel, 3, 16).unwrap();
    let (one, _other) = connect((&rig.domain, &queue), (&rig.domain, &rig.received));
    queue.arm().unwrap();
    one.post_writes(&[rig.sge(1, 0..1)]).unwrap();
    rig.fake.fail(Verb::GetEvent, libc::EIO);
    assert_fails(channel.wait(), Call::WAIT, libc::EIO);
    // `poll` woke two threads for one report, and a signal interrupted the call.
    for errno in [libc::EAGAIN, libc::EINTR] {
        rig.fake.fail(Verb::GetEvent, errno);
        assert_eq!(channel.try_wait().unwrap(), ChannelEvent::Nothing);
    }
    rig.fake.stop_failing();
    assert_eq!(channel.wait().unwrap(), ChannelEvent::Completion(3));
    rig.fake.fail(Verb::Arm, libc::ENODEV);
    assert_fails(queue.arm(), Call::ARM, libc::ENODEV);
}

/// The loss of the device comes before pending reports; other events are ignored.
#[test]
fn a_fatal_event_of_the_device_ends_the_wait() {
    const PORT_ERROR: u32 = 10;
    const FATAL: u32 = 8;
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let queue = CompletionQueue::with_channel(&channel, 3, 16).unwrap();
    let (one, _other) = connect((&rig.domain, &queue), (&rig.domain, &rig.received));
    // A kind that only a newer library knows.
    for kind in [PORT_ERROR, 1000] {
        rig.fake.raise_event(kind);
        assert_eq!(channel.try_wait().unwrap(), ChannelEvent::Nothing);
    }
    rig.fake.raise_event(PORT_ERROR);
    queue.arm().unwrap();
    one.post_writes(&[rig.sge(1, 0..1)]).unwrap();
    assert_eq!(channel.wait().unwrap(), ChannelEvent::Completion(3));
    rig.fake.raise_event(FATAL);
    queue.arm().unwrap();
    one.post_writes(&[rig.sge(2, 0..1)]).unwrap();
    let error = channel.wait().unwrap_err();
    assert_eq!((error.call(), error.errno()), (Call::EVENT, Some(libc::ENODEV)));
    assert_eq!(error.to_string(), "fake_0: cannot go on with the device: No such device (os error 19)");
    assert!(error.hint().unwrap().starts_with("it has been removed"));
    // The event is returned once. Afterwards pending reports are.
    assert_eq!(channel.wait().unwrap(), ChannelEvent::Completion(3));
    let waiting = channel.clone();
    let waits = thread::spawn(move || waiting.wait());
    rig.fake.raise_event(FATAL);
    assert_fails(waits.join().unwrap(), Call::EVENT, libc::ENODEV);
}

/// Such a failure may leave no completion behind. Events that a peer can cause are ignored.
#[test]
fn a_fatal_event_of_a_queue_or_pair_names_the_queue() {
    const QUEUE_ERROR: u32 = 0;
    const PAIR_FATAL: u32 = 1;
    const REQUEST_ERROR: u32 = 2;
    const ACCESS_ERROR: u32 = 3;
    const PORT_ERROR: u32 = 10;
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let queue = CompletionQueue::with_channel(&channel, 3, 16).unwrap();
    let (_one, _other) = connect((&rig.domain, &queue), (&rig.domain, &rig.received));
    let reports = |queues, pairs| {
        rig.fake.raise_error_events(queues, pairs);
        [(); 3].map(|()| channel.try_wait().unwrap())
    };
    assert_eq!(
        reports(QUEUE_ERROR, PORT_ERROR),
        [ChannelEvent::Failed(3), ChannelEvent::Nothing, ChannelEvent::Nothing]
    );
    assert_eq!(
        reports(PORT_ERROR, PAIR_FATAL),
        [ChannelEvent::Nothing, ChannelEvent::Failed(3), ChannelEvent::Nothing]
    );
    for kind in [REQUEST_ERROR, ACCESS_ERROR] {
        assert_eq!(reports(PORT_ERROR, kind), [ChannelEvent::Nothing; 3]);
    }
    rig.fake.raise_error_events(QUEUE_ERROR, PAIR_FATAL);
    assert_eq!([channel.wait().unwrap(), channel.wait().unwrap()], [ChannelEvent::Failed(3); 2]);
}

/// Threads that wait for the same reports, while the queues that report are created and destroyed.
#[test]
fn threads_share_reports_while_queues_are_destroyed() {
    const ROUNDS: usize = 200;
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let (tell, heard) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..3 {
            let (channel, tell) = (channel.clone(), tell.clone());
            scope.spawn(move || {
                while channel.wait().unwrap() == ChannelEvent::Completion(3) {
                    tell.send(()).unwrap();
                }
            });
        }
        // Only the threads keep a sender, so that `heard` ends with them.
        drop(tell);
        for round in 0..ROUNDS {
            let queue = CompletionQueue::with_channel(&channel, 3, 16).unwrap();
            let (one, _other) = connect((&rig.domain, &queue), (&rig.domain, &rig.received));
            queue.arm().unwrap();
            one.post_writes(&[rig.sge(1, 0..1)]).unwrap();
            // The others are destroyed with their pending reports.
            if round % 2 == 0 {
                heard.recv().unwrap();
            }
        }
        channel.close();
    });
    assert!(heard.iter().count() <= ROUNDS / 2);
}
