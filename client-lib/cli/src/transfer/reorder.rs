//! Puts the parts of a transfer in order. Pure.
//!
//! The library keeps the order of a key's frames as long as their receiver lives. A frame that is
//! sent again after a failure may come out of order.

use std::collections::BTreeMap;

/// Holds the parts of a transfer that came before earlier ones, up to a limit.
#[derive(Debug)]
pub(super) struct Reorder<T> {
    /// Number of bytes that are in order, from the beginning of the transfer.
    next: u64,
    /// Parts that wait for earlier ones, by their offsets, with their lengths.
    early: BTreeMap<u64, (u64, T)>,
    limit: usize,
}

/// A part of the transfer whose turn to be written has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ready<T> {
    /// To be written without the first `skip` bytes, which have been written already.
    Write { part: T, skip: u64 },
    /// A part of which all bytes have been written already.
    Repeat(T),
}

/// Error for more early parts than may wait: one before them is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl<T> Reorder<T> {
    /// Creates a buffer with the first `next` bytes in order already, and room for `limit` early
    /// parts.
    pub(super) fn new(next: u64, limit: usize) -> Self {
        Self { next, early: BTreeMap::new(), limit }
    }

    /// Returns how many bytes are in order, from the beginning of the transfer.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns whether a part is missing for which later ones wait.
    pub(super) fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }

    /// Adds a part. The caller then takes every [`ready`](Self::ready) part before it adds the
    /// next.
    pub(super) fn insert(&mut self, offset: u64, length: u64, part: T) -> Result<(), TooMany> {
        if self.early.len() > self.limit {
            return Err(TooMany);
        }
        // A part with the same offset is a repeat of the same part.
        self.early.insert(offset, (length, part));
        Ok(())
    }

    /// Returns the next part that does not wait for another; `None` if there is none.
    pub(super) fn ready(&mut self) -> Option<Ready<T>> {
        let first = self.early.first_entry().filter(|first| *first.key() <= self.next)?;
        let (offset, (length, part)) = first.remove_entry();
        let end = offset.saturating_add(length);
        if offset < self.next && end <= self.next {
            return Some(Ready::Repeat(part));
        }
        let skip = self.next - offset;
        self.next = end;
        Some(Ready::Write { part, skip })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists what is written of parts `(offset, length)` that come in this order, as `offset+skip`;
    /// `r` for repeats.
    fn written(start: u64, parts: &[(u64, u64)]) -> String {
        let mut reorder = Reorder::new(start, 3);
        let mut said = Vec::new();
        for &(offset, length) in parts {
            if reorder.insert(offset, length, offset).is_err() {
                said.push("full".to_owned());
                break;
            }
            while let Some(ready) = reorder.ready() {
                said.push(match ready {
                    Ready::Write { part, skip } => format!("{part}+{skip}"),
                    Ready::Repeat(part) => format!("r{part}"),
                });
            }
        }
        format!("{} = {}{}", said.join(" "), reorder.next(), if reorder.has_gap() { " gap" } else { "" })
    }

    #[test]
    fn parts_are_written_in_order() {
        type Parts = &'static [(u64, u64)];
        let cases: [(u64, Parts, &str); 9] = [
            (0, &[(0, 4), (4, 4), (8, 0)], "0+0 4+0 8+0 = 8"),
            (0, &[(4, 4), (0, 4)], "0+0 4+0 = 8"),
            (0, &[(8, 0), (4, 4), (0, 4)], "0+0 4+0 8+0 = 8"),
            (0, &[(0, 4), (0, 4), (4, 4)], "0+0 r0 4+0 = 8"),
            (6, &[(0, 4), (4, 4), (8, 4)], "r0 4+2 8+0 = 12"),
            (8, &[(4, 4), (8, 0)], "r4 8+0 = 8"),
            (0, &[(0, 0)], "0+0 = 0"),
            (0, &[(4, 4), (8, 4)], " = 0 gap"),
            (0, &[(4, 4), (8, 4), (12, 4), (16, 4), (20, 4)], "full = 0 gap"),
        ];
        for (start, parts, expected) in cases {
            assert_eq!(written(start, parts), expected, "{parts:?}");
        }
    }

    #[test]
    fn offsets_that_are_too_large_do_not_overflow() {
        assert_eq!(written(0, &[(u64::MAX, 9)]), " = 0 gap");
        assert_eq!(written(7, &[(0, u64::MAX)]), format!("0+7 = {}", u64::MAX));
        assert_eq!(written(u64::MAX, &[(u64::MAX - 1, 9)]), format!("r{} = {}", u64::MAX - 1, u64::MAX));
    }
}
