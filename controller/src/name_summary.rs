//! Lists of names in messages, shortened to the first few.

use std::fmt;

/// Number of names that a message contains before it counts the others.
pub(crate) const MAX_NAMED: usize = 3;

/// The first few of many names, with the number of all names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameSummary {
    /// The first names, at most [`MAX_NAMED`].
    pub names: Vec<String>,
    /// Number of all names.
    pub count: usize,
}

impl NameSummary {
    /// Adds a name.
    pub fn add(&mut self, name: impl Into<String>) {
        if self.names.len() < MAX_NAMED {
            self.names.push(name.into());
        }
        self.count += 1;
    }
}

impl<T: Into<String>> FromIterator<T> for NameSummary {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        let mut summary = Self::default();
        names.into_iter().for_each(|name| summary.add(name));
        summary
    }
}

impl fmt::Display for NameSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))?;
        match self.count - self.names.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_names_are_listed_and_the_others_counted() {
        let text = |names: &[&str]| names.iter().copied().collect::<NameSummary>().to_string();
        assert_eq!(text(&[]), "");
        assert_eq!(text(&["a", "b", "c"]), "a, b, c");
        assert_eq!(text(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }
}
