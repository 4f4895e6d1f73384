//! Escaping of text from outside, so that it stays in one line and cannot steer a terminal.

use std::fmt;

/// Displays text from outside with its control characters escaped (`\n`, `\u{1b}`).
///
/// Use it for text that a peer, a user or a file controls, and that becomes part of a line: the
/// text cannot start a line of its own, and no escape sequence reaches a terminal. The fields of
/// log events are escaped already.
#[derive(Clone, Copy, Debug)]
pub struct TerminalSafe<'a>(pub &'a str);

impl fmt::Display for TerminalSafe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(needs_escape) {
            let clean = part.trim_end_matches(needs_escape);
            f.write_str(clean)?;
            for c in part[clean.len()..].chars() {
                write!(f, "{}", c.escape_default())?;
            }
        }
        Ok(())
    }
}

/// Returns whether `c` is a control character, a line or paragraph separator, or a mark that
/// changes the direction of writing.
pub(crate) fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_nothing_else() {
        let cases = [
            ("plain, with umlauts: ä \\ \"", "plain, with umlauts: ä \\ \""),
            ("two\nlines\r\n", "two\\nlines\\r\\n"),
            ("\x1b[31mred\x1b[0m", "\\u{1b}[31mred\\u{1b}[0m"),
            ("c1 \u{9b}31m, del \x7f, tab\t.", "c1 \\u{9b}31m, del \\u{7f}, tab\\t."),
            ("\u{61c}\u{200e}\u{200f}", "\\u{61c}\\u{200e}\\u{200f}"),
            ("right\u{202e}left\u{2028}", "right\\u{202e}left\\u{2028}"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(TerminalSafe(text).to_string(), expected);
        }
    }
}
