//! Lists in messages.

use std::fmt;

/// List for a message, of which only the beginning is shown where it is long.
pub(crate) struct List<'a, T>(pub(crate) &'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (place, item) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{item}")?;
        }
        match self.0.len().checked_sub(SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_shortened() {
        let list: Vec<u32> = (0..10).collect();
        assert_eq!(List(&list).to_string(), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        assert_eq!(List(&list[..8]).to_string(), "0, 1, 2, 3, 4, 5, 6, 7");
        assert_eq!(List::<u32>(&[]).to_string(), "");
    }
}
