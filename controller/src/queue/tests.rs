use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "vision".into(), name: name.into() }
}

fn open() -> Arc<Queue> {
    let queue = Arc::new(Queue::default());
    queue.open();
    queue
}

/// Returns the next service, if one is ready.
async fn now(queue: &Arc<Queue>) -> Option<WorkItem> {
    tokio::time::timeout(Duration::ZERO, queue.next()).await.ok()
}

/// Returns the name of the next service, and ends its turn at once.
async fn name(queue: &Arc<Queue>) -> String {
    let item = queue.next().await;
    let name = item.service().name.clone();
    item.done();
    name
}

/// Fails the work item. Returns the time until the retry, and the next work item.
async fn pause(queue: &Arc<Queue>, item: WorkItem, pause: Backoff) -> (Duration, WorkItem) {
    let failed = Instant::now();
    item.failed(pause);
    let item = queue.next().await;
    (failed.elapsed(), item)
}

/// Resolution of the paused clock.
const TICK: Duration = Duration::from_millis(2);

#[tokio::test(start_paused = true)]
async fn services_are_queued_once_and_in_order() {
    let queue = open();
    for service in ["b", "a", "b", "c", "a"] {
        queue.add(&key(service));
    }
    assert_eq!(queue.depth(), 3);
    assert_eq!([name(&queue).await, name(&queue).await, name(&queue).await], ["b", "a", "c"]);
    assert_eq!(queue.depth(), 0);
    assert!(now(&queue).await.is_none());
    assert!(queue.lock().entries.is_empty(), "finished work leaves no entry");
}

#[tokio::test(start_paused = true)]
async fn adding_a_service_wakes_the_waiting_task() {
    let queue = open();
    let waiting = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { name(&queue).await }
    });
    tokio::task::yield_now().await;
    queue.add(&key("a"));
    assert_eq!(waiting.await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_changes_in_progress_is_queued_once_more() {
    let queue = open();
    queue.add(&key("a"));
    let item = queue.next().await;
    queue.add(&key("a"));
    queue.add(&key("a"));
    assert!(now(&queue).await.is_none(), "it is in work");
    item.done();
    queue.next().await.done();
    assert!(now(&queue).await.is_none(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_always_changes_does_not_block_others() {
    let queue = open();
    queue.add(&key("busy"));
    let item = queue.next().await;
    queue.add(&key("other"));
    queue.add(&key("busy"));
    item.done();
    assert_eq!([name(&queue).await, name(&queue).await], ["other", "busy"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_keeps_changing_in_progress_gets_growing_cooldowns() {
    let queue = open();
    let second = Duration::from_secs(1);
    queue.add(&key("a"));
    let mut item = queue.next().await;
    let mut rests = Vec::new();
    for changes in [[true; 9].as_slice(), &[false, false, true, true]].concat() {
        let done = Instant::now();
        item.record_write();
        if changes {
            queue.add(&key("a"));
        }
        item.requeue_at(done + second);
        queue.add(&key("a"));
        item = queue.next().await;
        rests.push(done.elapsed().as_millis());
    }
    assert!(
        rests
            .iter()
            .zip([0, 10, 20, 40, 80, 160, 320, 500, 500, 250, 125, 125, 250])
            .all(|(rest, wanted)| { (wanted..=wanted + TICK.as_millis()).contains(rest) }),
        "{rests:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_own_writes_come_back_gets_no_cooldown() {
    let queue = open();
    for _ in 0..5 {
        queue.add(&key("a"));
        let mut item = now(&queue).await.expect("it does not rest");
        item.record_write();
        queue.add(&key("a"));
        item.done();
        let item = now(&queue).await.expect("there may be more to it");
        item.requeue_at(Instant::now() + Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_double_up_to_a_limit_and_are_reset_by_success() {
    for (kind, longest_of_all) in [(Backoff::Service, LONGEST), (Backoff::Outage, LONGEST_OUTAGE)] {
        let queue = open();
        queue.add(&key("a"));
        let mut item = queue.next().await;
        let mut longest = FIRST;
        for failures in 0..12 {
            assert_eq!(item.failures(), failures);
            let (took, again) = pause(&queue, item, kind).await;
            assert!(longest / 2 <= took && took <= longest + TICK, "{took:?} is not within {longest:?}");
            longest = (longest * 2).min(longest_of_all);
            item = again;
        }
        assert_eq!(longest, longest_of_all);
        item.done();
        queue.add(&key("a"));
        let item = queue.next().await;
        assert_eq!(item.failures(), 0);
        assert!(pause(&queue, item, kind).await.0 <= FIRST + TICK);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_needs_a_user_waits_long_from_the_start() {
    let queue = open();
    queue.add(&key("a"));
    let item = queue.next().await;
    assert!(pause(&queue, item, Backoff::Longest).await.0 >= LONGEST / 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_ends_a_pause() {
    let queue = open();
    queue.add(&key("a"));
    queue.next().await.failed(Backoff::Longest);
    assert!(now(&queue).await.is_none());
    queue.add(&key("a"));
    let item = now(&queue).await.expect("it has changed");
    assert_eq!(item.failures(), 1, "a change is no success");
    item.done();
    tokio::time::sleep(LONGEST * 2).await;
    assert!(now(&queue).await.is_none(), "the pause itself is forgotten");
    assert!(queue.lock().waiting.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_requested_pause_is_not_cut_short() {
    let queue = open();
    queue.add(&key("a"));
    let asked = Duration::from_secs(7);
    queue.next().await.failed(Backoff::RetryAfter(asked));
    let failed = Instant::now();
    queue.add(&key("a"));
    let item = queue.next().await;
    assert!(failed.elapsed() >= asked && failed.elapsed() <= asked * 3 / 2 + TICK, "{:?}", failed.elapsed());
    let (took, _item) = pause(&queue, item, Backoff::RetryAfter(Duration::MAX)).await;
    assert!(took <= LONGEST_ASKED * 3 / 2 + TICK, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_adds_its_own_service_does_not_spin() {
    let queue = open();
    queue.add(&key("a"));
    let mut item = queue.next().await;
    for _ in 0..5 {
        queue.add(&key("a"));
        let (took, again) = pause(&queue, item, Backoff::Service).await;
        assert!(FIRST / 2 <= took && took <= FIRST + TICK, "{took:?}");
        item = again;
    }
}

#[tokio::test(start_paused = true)]
async fn a_requeued_service_comes_back_on_time_or_after_a_change() {
    let queue = open();
    queue.add(&key("a"));
    let second = Duration::from_secs(1);
    let done = Instant::now();
    queue.next().await.requeue_at(done + second);
    queue.next().await.requeue_at(done + second * 2);
    assert!(done.elapsed() >= second);
    queue.add(&key("a"));
    assert!(now(&queue).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn services_that_fail_together_are_retried_apart() {
    let queue = open();
    let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    names.iter().for_each(|name| queue.add(&key(name)));
    for _ in &names {
        queue.next().await.failed(Backoff::Service);
    }
    let failed = Instant::now();
    let mut times = std::collections::BTreeSet::new();
    for _ in &names {
        name(&queue).await;
        times.insert(failed.elapsed());
    }
    assert!(times.len() > 1, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_closed_queue_keeps_nothing() {
    let queue = Arc::new(Queue::default());
    queue.add(&key("early"));
    assert!(now(&queue).await.is_none(), "it begins closed");

    queue.open();
    queue.add(&key("in-work"));
    let item = queue.next().await;
    queue.add(&key("in-work"));
    queue.add(&key("ready"));
    queue.add(&key("failed"));
    // The order of these two is not specified.
    queue.next().await.failed(Backoff::Service);
    queue.close();
    queue.add(&key("late"));
    tokio::time::sleep(LONGEST).await;
    assert!(now(&queue).await.is_none());

    // The queue is opened again before the old turn ends. The service is still not in progress
    // twice.
    queue.open();
    queue.add(&key("in-work"));
    assert!(now(&queue).await.is_none());
    item.failed(Backoff::Service);
    assert_eq!(name(&queue).await, "in-work");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure() {
    let queue = open();
    queue.add(&key("a"));
    let item = queue.next().await;
    let work = tokio::spawn(async move {
        let _item = item;
        panic!("for the test");
    });
    assert!(work.await.is_err());
    assert_eq!(queue.next().await.failures(), 1);
}

#[tokio::test(start_paused = true)]
async fn unfinished_work_comes_again_after_others_without_a_cooldown() {
    let queue = open();
    queue.add(&key("huge"));
    let item = queue.next().await;
    queue.add(&key("other"));
    queue.add(&key("huge"));
    item.requeue();
    let now = Instant::now();
    assert_eq!([name(&queue).await, name(&queue).await], ["other", "huge"]);
    assert_eq!(now.elapsed(), Duration::ZERO);
    assert!(queue.lock().entries.is_empty(), "once");
}
