//! The memory that the frames of all connections may take together.

use std::fmt;

use crate::cgroup::Limit;

/// Most bytes for frames that a listener takes by default.
const MOST: usize = 4 << 30;

/// Divisor of the memory that the process may use. As much again may lie in the kernel, which keeps
/// what senders have credit for until it is read. The rest is for the program.
const PART: u64 = 4;

/// Bytes that the frames of all connections may take together, and why as many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) bytes: usize,
    /// The end of a line about the budget: the reason for it, if the program has not set it.
    basis: String,
}

impl Budget {
    /// Returns the budget that the program has set by
    /// [`ListenerBuilder::memory`](super::ListenerBuilder::memory).
    pub(super) fn given(bytes: usize) -> Self {
        Self { bytes, basis: String::new() }
    }

    /// Returns the default budget: a part of the memory that this process may use.
    pub(super) fn read() -> Self {
        Self::of(Limit::read())
    }

    /// Returns the most by default, which is that of a GPU: it has its own memory.
    pub(super) fn most() -> Self {
        Self { bytes: MOST, basis: ", the most that is taken by default".to_owned() }
    }

    fn of(limit: Option<Limit>) -> Self {
        let part = limit.and_then(|limit| Some((usize::try_from(limit.bytes / PART).ok()?, limit)));
        match part {
            Some((bytes, limit)) if bytes < MOST => {
                Self { bytes, basis: format!(", a quarter of the {limit}") }
            }
            _ => Self::most(),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes{}", self.bytes, self.basis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_budget_is_a_quarter_of_the_limit_and_four_gib_at_most() {
        let limit = |bytes| Some(Limit::of(bytes, "/sys/fs/cgroup/memory.max"));
        let cases = [
            (
                limit(512 << 20),
                "134217728 bytes, a quarter of the 536870912 bytes of /sys/fs/cgroup/memory.max",
            ),
            (limit(16 << 30), "4294967296 bytes, the most that is taken by default"),
            (limit(1 << 50), "4294967296 bytes, the most that is taken by default"),
            (None, "4294967296 bytes, the most that is taken by default"),
        ];
        for (limit, expected) in cases {
            assert_eq!(Budget::of(limit).to_string(), expected);
        }
        assert_eq!(Budget::given(7).to_string(), "7 bytes");
    }
}
