//! Formatting of an event's fields with unsafe characters escaped. The rest of a log line (time,
//! level, target) is the program's own text.

use std::fmt::{self, Write as _};
use std::io;

use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{DefaultFields, FormatFields, Writer};

use crate::TerminalSafe;
use crate::escape::needs_escape;

/// Formats fields of events and spans as tracing's default does, and escapes the result.
#[derive(Debug)]
pub(crate) struct Plain;

impl<'w> FormatFields<'w> for Plain {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        write!(writer, "{}", TerminalSafe(&text))
    }
}

/// Makes writers that also escape the unsafe characters that JSON leaves as they are.
#[derive(Debug)]
pub(crate) struct Json<W>(pub(crate) W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for Json<W> {
    type Writer = Line<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        Line(self.0.make_writer())
    }
}

/// Writer of one JSON object per call of `write`.
#[derive(Debug)]
pub(crate) struct Line<W>(W);

impl<W: io::Write> io::Write for Line<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match str::from_utf8(line) {
            Ok(text) if text.trim_end_matches('\n').contains(needs_escape) => {
                self.0.write_all(escaped(text).as_bytes())?;
            }
            _ => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Escapes unsafe characters of a line of JSON. Apart from the newline at its end, they occur only
/// in strings, and none is beyond U+FFFF, so that `\uXXXX` can express each.
fn escaped(line: &str) -> String {
    let mut text = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        if needs_escape(c) && c != '\n' {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}
