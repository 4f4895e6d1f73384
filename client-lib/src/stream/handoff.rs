//! Work that any thread may do, but only one at a time, without anybody waiting.
//!
//! Whoever adds work calls [`HandoffLock::run`]. If somebody is at it already, they will see the new work: they look once more after they
//! have put the baton down. So nothing is left lying, and no thread ever waits for another.

use std::ops::ControlFlow;

// In unit tests, one that lets other threads go first at every step.
#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(test))]
use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// What is needed for the work, and who has it may do the work.
#[derive(Debug)]
pub(crate) struct HandoffLock<T>(Mutex<T>);

impl<T> HandoffLock<T> {
    pub(crate) fn new(tools: T) -> Self {
        Self(Mutex::new(tools))
    }

    /// Does all the work that there is, unless somebody else is at it, and until `work` breaks off. Then whoever is to go on must be
    /// told, and only now: before, the baton was not free.
    pub(crate) fn run(
        &self,
        mut work: impl FnMut(&mut T) -> ControlFlow<()>,
        has_more: impl Fn() -> bool,
    ) -> ControlFlow<()> {
        loop {
            match self.0.try_lock() {
                Ok(mut tools) => work(&mut tools)?,
                Err(TryLockError::WouldBlock) => return ControlFlow::Continue(()),
                // No code panics while it has it.
                Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner())?,
            }
            if !has_more() {
                return ControlFlow::Continue(());
            }
        }
    }

    /// The tools, for something else than the work.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use shuttle::sync::Arc;
    use shuttle::{check_pct, thread};

    use super::*;

    /// Two threads add work and pass; whatever the order of their steps, everything has been done when both have returned.
    #[test]
    fn nothing_is_left_lying() {
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
        // Orders in which threads are overtaken at up to three places, and there are not many more.
        check_pct(model, 5000, 3);
    }
}
