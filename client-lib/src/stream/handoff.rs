//! Lock for work that any thread may do, but only one at a time, where no thread waits for another.
//!
//! A thread first adds its work to a queue, and then calls [`HandoffLock::run`]. If another thread
//! holds the lock, the call returns at once: the holder looks for more work after it has unlocked,
//! and so finds the work that was added meanwhile.

use std::ops::ControlFlow;

// In unit tests, a mutex that lets other threads run at every step.
#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(test))]
use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// Lock around state `T` for work that any thread may do, without waiting for the lock.
#[derive(Debug)]
pub(crate) struct HandoffLock<T>(Mutex<T>);

impl<T> HandoffLock<T> {
    pub(crate) fn new(state: T) -> Self {
        Self(Mutex::new(state))
    }

    /// Runs `work` until `has_more` is false, unless another thread is at it.
    ///
    /// If `work` breaks off, this breaks off, too. The caller then has to wake the task that goes
    /// on with the work, and not earlier: while the lock was held, the task could not have got it.
    pub(crate) fn run(
        &self,
        mut work: impl FnMut(&mut T) -> ControlFlow<()>,
        has_more: impl Fn() -> bool,
    ) -> ControlFlow<()> {
        loop {
            match self.0.try_lock() {
                Ok(mut state) => work(&mut state)?,
                // The holder calls `has_more` after it has unlocked, and so sees our work.
                Err(TryLockError::WouldBlock) => return ControlFlow::Continue(()),
                // No code panics while it holds the lock.
                Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner())?,
            }
            if !has_more() {
                return ControlFlow::Continue(());
            }
        }
    }

    /// Waits for the lock, for access to the state outside of [`run`](Self::run).
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use shuttle::sync::Arc;
    use shuttle::{check_pct, thread};

    use super::*;

    /// Two threads add work and run it. In whatever order they take their steps, all work is done
    /// when both have returned.
    #[test]
    fn work_added_while_another_thread_runs_is_done_by_either() {
        let model = || {
            let queue = Arc::new(Mutex::new(Vec::new()));
            let lock = Arc::new(HandoffLock::new(Vec::new()));
            let add = |item: u8| {
                let (queue, lock) = (Arc::clone(&queue), Arc::clone(&lock));
                move || {
                    queue.lock().unwrap().push(item);
                    let passed = lock.run(
                        |done: &mut Vec<u8>| {
                            done.append(&mut queue.lock().unwrap());
                            ControlFlow::Continue(())
                        },
                        || !queue.lock().unwrap().is_empty(),
                    );
                    assert!(passed.is_continue());
                }
            };
            let other = thread::spawn(add(1));
            add(2)();
            other.join().unwrap();
            let mut done = lock.lock().clone();
            done.sort_unstable();
            assert_eq!(done, [1, 2]);
        };
        // Orders in which threads are overtaken at up to three points. There are not many more.
        check_pct(model, 5000, 3);
    }
}
