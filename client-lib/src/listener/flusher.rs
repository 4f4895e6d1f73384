//! Flushes connections: sends what they have collected, as [`ack`](super::ack) decides.

use std::sync::Weak;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::ack::{LONGEST_PAUSE, PAUSE};

/// Connection that collects credits and acknowledgements for its sender before it sends them.
pub(super) trait Flush {
    /// Sends what the connection has collected, or returns how long to wait for more.
    fn flush(&self) -> Option<Duration>;

    /// Sends what the connection has collected, as the program waits for frames.
    fn flush_idle(&self);
}

/// Connections that have something to send. They are not kept alive for that.
pub(super) struct Flusher<C> {
    /// Connections that wait for a timed flush.
    waiting: Mutex<Vec<Weak<C>>>,
    /// Connections that wait for the program to be idle.
    urgent: Mutex<Vec<Weak<C>>>,
    /// Wakes [`run`](Self::run) when a connection begins to wait.
    wake: Notify,
}

impl<C> Default for Flusher<C> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), urgent: Mutex::default(), wake: Notify::new() }
    }
}

impl<C: Flush> Flusher<C> {
    /// Flushes a connection after [`PAUSE`], or later while it collects more.
    pub(super) fn flush_later(&self, connection: Weak<C>) {
        self.waiting.lock().push(connection);
        self.wake.notify_one();
    }

    /// Flushes a connection as soon as the program waits for a frame.
    pub(super) fn flush_when_idle(&self, connection: Weak<C>) {
        let mut urgent = self.urgent.lock();
        // A program that always finds a frame is never idle. Connections that have ended meanwhile
        // are removed whenever the list would have to grow.
        if urgent.len() == urgent.capacity() {
            urgent.retain(|connection| connection.strong_count() > 0);
        }
        urgent.push(connection);
    }

    /// Flushes the connections that have waited for the program to be idle. Nothing is sent under
    /// the lock, which receiving threads take, too.
    pub(super) fn flush_idle(&self) {
        let next = || self.urgent.lock().pop();
        while let Some(connection) = next() {
            if let Some(connection) = connection.upgrade() {
                connection.flush_idle();
            }
        }
    }

    /// Flushes the connections that wait for a timed flush, for ever.
    pub(super) async fn run(&self) {
        let mut flushed = Vec::new();
        loop {
            self.wake.notified().await;
            let mut due = Instant::now() + PAUSE;
            while !self.waiting.lock().is_empty() {
                tokio::select! {
                    () = sleep_until(due) => {}
                    // A connection that is new here does not wait longer because of others.
                    () = self.wake.notified() => {
                        due = due.min(Instant::now() + PAUSE);
                        continue;
                    }
                }
                std::mem::swap(&mut flushed, &mut *self.waiting.lock());
                let mut pause = LONGEST_PAUSE;
                flushed.retain(|connection: &Weak<C>| {
                    let wait = connection.upgrade().and_then(|connection| connection.flush());
                    pause = pause.min(wait.unwrap_or(pause));
                    wait.is_some()
                });
                self.waiting.lock().append(&mut flushed);
                due = Instant::now() + pause;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Idle;

    impl Flush for Idle {
        fn flush(&self) -> Option<Duration> {
            None
        }

        fn flush_idle(&self) {}
    }

    #[test]
    fn connections_that_have_ended_do_not_wait_for_an_idle_program() {
        let flusher = Flusher::default();
        let open = Arc::new(Idle);
        flusher.flush_when_idle(Arc::downgrade(&open));
        (0..1000).for_each(|_| flusher.flush_when_idle(Arc::downgrade(&Arc::new(Idle))));
        let waiting = flusher.urgent.lock();
        assert!(waiting.len() < 10 && waiting[0].strong_count() == 1, "{}", waiting.len());
    }
}
